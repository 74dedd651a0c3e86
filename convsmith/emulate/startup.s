# The end of the ROM: from reset to 64-bit mode with the memory that the rest of the ROM describes, then calls.
#
# 64 KiB, seen both below 1 MiB and below 4 GiB. `pages` holds where a list of the memory's pages is in the ROM: how
# many, then (address, where its contents are) for each. IMAGE is the root of the page tables; in the page after it
# stand the top of the stack, how many calls and how many results there are, and where a list of them is: (function,
# argument block, part, number of parts) for each call, then (address, bytes) for each result.
#
# What goes out through port 0xE9 is a mark, then one of
#   "R" and the bytes of the results,
#   "F" and four numbers of an exception: address of the instruction, address accessed, vector, error code,
#   "T" where the handling of an exception failed too, and the processor began again.

.set ROM, 0xf0000
.set IMAGE, 0x100000
.set NUMBERS, IMAGE + 0x1000
.set BEGUN, 0x500                           # a place in memory, zero at first, which a reset leaves as it is

.set CODE64, 8
.set DATA, 16
.set CODE32, 24

.text
rom:

.code16
begin:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    movb $2, %al                            # address line 20 is a line like the others
    outb %al, $0x92
    lgdtl (segments_at - rom)
    movl $0x11, %eax
    movl %eax, %cr0                         # protected mode, without pages
    .byte 0x66, 0xea                        # far jumps are spelled out: their addresses go by no relocation
    .long begin32 - rom + ROM
    .word CODE32

.code32
begin32:
    movl $DATA, %eax
    movl %eax, %ss
    movl %eax, %ds
    movl %eax, %es
    cmpl $0, BEGUN
    jne again
    movl $1, BEGUN

    movl pages - rom + ROM, %ebx
    movl (%ebx), %ebp
page:
    subl $1, %ebp
    jc paging
    movl 4(%ebx), %edi
    movl 8(%ebx), %esi
    movl $1024, %ecx
    rep movsl
    addl $8, %ebx
    jmp page

paging:
    movl $(1 << 5 | 1 << 9 | 1 << 10 | 1 << 18), %eax
    movl %eax, %cr4                         # 64-bit page tables, SSE with its exceptions, XSAVE
    movl $IMAGE, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $(1 << 8 | 1 << 11), %eax           # 64-bit mode; pages may forbid to be executed
    wrmsr
    movl $(1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1), %eax
    movl %eax, %cr0                         # paging, and read-only pages are so for everyone
    .byte 0xea
    .long begin64 - rom + ROM
    .word CODE64

again:
    movl $(mark - rom + ROM), %esi
    movl $(mark_end - mark), %ecx
    movl $0xe9, %edx
    rep outsb
    movb $'T', %al
    outb %al, %dx
    movl $(word - rom + ROM), %esi
    movl $8, %ecx
    movl $0x8900, %edx
    rep outsb
    hlt

.balign 8
segments:
    .quad 0
    .quad 0x00af9b000000ffff                # 64-bit code
    .quad 0x00cf93000000ffff                # data
    .quad 0x00cf9b000000ffff                # 32-bit code
segments_at:
    .word segments_at - segments - 1
    .long segments - rom + ROM

.balign 4
pages:
    .long 0

.code64
begin64:
    movl $DATA, %eax
    movl %eax, %ss
    movl %eax, %ds
    movl %eax, %es
    lidt interrupts_at(%rip)
    movl $NUMBERS, %ebx
    movq (%rbx), %rsp
    movl $13, %eax                          # all state that the processor knows
    xorl %ecx, %ecx
    cpuid
    xorl %ecx, %ecx
    xsetbv
    fninit

    movl $NUMBERS, %ebx
    movq 8(%rbx), %r12
    movq 16(%rbx), %r13
    movq 24(%rbx), %rbx
call:
    subq $1, %r12
    jc results
    movq 8(%rbx), %rdi
    movq 16(%rbx), %rsi
    movq 24(%rbx), %rdx
    callq *(%rbx)
    addq $32, %rbx
    jmp call

results:
    movb $'R', %al
    callq announce
result:
    subq $1, %r13
    jc shutdown
    movq (%rbx), %rsi
    movq 8(%rbx), %rcx
    callq send
    addq $16, %rbx
    jmp result

# Says that the letter in al is what comes now.
announce:
    movb %al, %r8b
    leaq mark(%rip), %rsi
    movl $(mark_end - mark), %ecx
    callq send
    movb %r8b, %al
    outb %al, $0xe9
    retq

# Sends rcx bytes at rsi.
send:
    cld
    movw $0xe9, %dx
    rep outsb
    retq

shutdown:
    leaq word(%rip), %rsi
    movl $8, %ecx
    movw $0x8900, %dx
    rep outsb
halt:
    hlt
    jmp halt

mark:
    .ascii "\nconvsmith results:"
mark_end:
word:
    .ascii "Shutdown"

# Exceptions. Some push an error code; for the others the handler pushes 0.
.macro handler number
    .balign 16
    .if !(\number == 8 || (\number >= 10 && \number <= 14) || \number == 17 || \number == 21 || \number == 30)
    pushq $0
    .endif
    pushq $\number
    jmp fault
.endm

.balign 16
handlers:
.set number, 0
.rept 32
    handler number
    .set number, number + 1
.endr

fault:
    movq %cr2, %rax
    movq 16(%rsp), %rbx                     # of the instruction; below it the error code and the vector
    pushq %rax
    pushq %rbx
    movb $'F', %al
    callq announce
    movq %rsp, %rsi
    movl $32, %ecx
    callq send
    jmp shutdown

# What compiled code calls by these names.
.globl memset
memset:
    movq %rdi, %r8
    movq %rdx, %rcx
    movl %esi, %eax
    rep stosb
    movq %r8, %rax
    retq

.globl memcpy
memcpy:
    movq %rdi, %rax
    movq %rdx, %rcx
    rep movsb
    retq

.balign 8
interrupts:
.set number, 0
.rept 32
    .word (handlers - rom + ROM + number * 16) & 0xffff
    .word CODE64
    .word 0x8e00
    .word (handlers - rom + ROM + number * 16) >> 16
    .quad 0
    .set number, number + 1
.endr
interrupts_at:
    .word interrupts_at - interrupts - 1
    .quad interrupts - rom + ROM

.org 0xfff0
.code16
    .byte 0xea                              # reset: a far jump to begin, by segment and offset
    .word begin - rom
    .word ROM >> 4
.org 0x10000
