; The code that begins the run of a Linux process: calls, then results on standard output, then the end.
;
; NUMBERS is the address of the page that `Image.finish` writes: the top of the stack, how many calls and how many
; results there are, and the address of a list of them: (function, argument block, part, number of parts) for each call,
; then (address, bytes) for each result. Linux has given the process a stack of its own.

target triple = "riscv64-unknown-linux-gnu"

; mv a7, a3; ecall; ret
define i64 @system(i64 %a, i64 %b, i64 %c, i64 %number) naked noinline
    prologue [3 x i32] [i32 u0x00068893, i32 u0x00000073, i32 u0x00008067] {
  unreachable
}

define void @begin() {
entry:
  %counts = inttoptr i64 {NUMBERS} to ptr
  %at.calls = getelementptr i64, ptr %counts, i64 1
  %calls = load i64, ptr %at.calls
  %at.results = getelementptr i64, ptr %counts, i64 2
  %results = load i64, ptr %at.results
  %at.list = getelementptr i64, ptr %counts, i64 3
  %list = load ptr, ptr %at.list
  %behind = getelementptr [4 x i64], ptr %list, i64 %calls
  %end = getelementptr [2 x i64], ptr %behind, i64 %results
  br label %called
called:
  %call = phi ptr [ %list, %entry ], [ %next.call, %run ]
  %none = icmp eq ptr %call, %behind
  br i1 %none, label %sent, label %run
run:
  %function = load ptr, ptr %call
  %at.block = getelementptr i64, ptr %call, i64 1
  %block = load ptr, ptr %at.block
  %at.part = getelementptr i64, ptr %call, i64 2
  %part.number = load i64, ptr %at.part
  %at.parts = getelementptr i64, ptr %call, i64 3
  %parts = load i64, ptr %at.parts
  call void %function(ptr %block, i64 %part.number, i64 %parts)
  %next.call = getelementptr [4 x i64], ptr %call, i64 1
  br label %called
sent:
  %result = phi ptr [ %behind, %called ], [ %next.result, %done ]
  %last = icmp eq ptr %result, %end
  br i1 %last, label %exit, label %first
first:
  %start = load i64, ptr %result
  %at.size = getelementptr i64, ptr %result, i64 1
  %size = load i64, ptr %at.size
  %stop = add i64 %start, %size
  br label %part
part:
  %from = phi i64 [ %start, %first ], [ %after, %send ]
  %left = sub i64 %stop, %from
  %empty = icmp eq i64 %left, 0
  br i1 %empty, label %done, label %send
send:
  %written = call i64 @system(i64 1, i64 %from, i64 %left, i64 64)
  %after = add i64 %from, %written
  %failed = icmp slt i64 %written, 0
  br i1 %failed, label %exit, label %part
done:
  %next.result = getelementptr [2 x i64], ptr %result, i64 1
  br label %sent
exit:
  %status = phi i64 [ 0, %sent ], [ 1, %send ]
  %ended = call i64 @system(i64 %status, i64 0, i64 0, i64 94)
  unreachable
}

define ptr @memset(ptr %to, i32 %byte, i64 %size) {
entry:
  %value = trunc i32 %byte to i8
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %more, %write ]
  %end = icmp eq i64 %n, %size
  br i1 %end, label %done, label %write
write:
  %place = getelementptr i8, ptr %to, i64 %n
  store volatile i8 %value, ptr %place
  %more = add i64 %n, 1
  br label %next
done:
  ret ptr %to
}

define ptr @memcpy(ptr %to, ptr %from, i64 %size) {
entry:
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %more, %write ]
  %end = icmp eq i64 %n, %size
  br i1 %end, label %done, label %write
write:
  %source = getelementptr i8, ptr %from, i64 %n
  %value = load volatile i8, ptr %source
  %place = getelementptr i8, ptr %to, i64 %n
  store volatile i8 %value, ptr %place
  %more = add i64 %n, 1
  br label %next
done:
  ret ptr %to
}

