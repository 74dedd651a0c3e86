; The code that begins the run of a Linux process: calls, then results on standard output, then the end.
;
; NUMBERS is the address of the page that `Image.finish` writes: the top of the stack, how many calls and how many
; results there are, and the address of a list of them: (function, argument block, part, number of parts) for each call,
; then (address, bytes) for each result. Linux has given the process a stack of its own. The numbers have 64 bits, of
; which the lower half is read.

target triple = "hexagon-unknown-linux-musl"

; r6 = r3; trap0(#1); jumpr r31
define i32 @system(i32 %a, i32 %b, i32 %c, i32 %number) naked noinline
    prologue [3 x i32] [i32 u0x7063C006, i32 u0x5400C004, i32 u0x529FC000] {
  unreachable
}

define void @begin() {
entry:
  %counts = inttoptr i32 {NUMBERS} to ptr
  %at.calls = getelementptr i64, ptr %counts, i32 1
  %calls = load i32, ptr %at.calls
  %at.results = getelementptr i64, ptr %counts, i32 2
  %results = load i32, ptr %at.results
  %at.list = getelementptr i64, ptr %counts, i32 3
  %list = load ptr, ptr %at.list
  %behind = getelementptr [4 x i64], ptr %list, i32 %calls
  %end = getelementptr [2 x i64], ptr %behind, i32 %results
  br label %called
called:
  %call = phi ptr [ %list, %entry ], [ %next.call, %run ]
  %none = icmp eq ptr %call, %behind
  br i1 %none, label %sent, label %run
run:
  %function = load ptr, ptr %call
  %at.block = getelementptr i64, ptr %call, i32 1
  %block = load ptr, ptr %at.block
  %at.part = getelementptr i64, ptr %call, i32 2
  %part.number = load i32, ptr %at.part
  %at.parts = getelementptr i64, ptr %call, i32 3
  %parts = load i32, ptr %at.parts
  call void %function(ptr %block, i32 %part.number, i32 %parts)
  %next.call = getelementptr [4 x i64], ptr %call, i32 1
  br label %called
sent:
  %result = phi ptr [ %behind, %called ], [ %next.result, %done ]
  %last = icmp eq ptr %result, %end
  br i1 %last, label %exit, label %first
first:
  %start = load i32, ptr %result
  %at.size = getelementptr i64, ptr %result, i32 1
  %size = load i32, ptr %at.size
  %stop = add i32 %start, %size
  br label %part
part:
  %from = phi i32 [ %start, %first ], [ %after, %send ]
  %left = sub i32 %stop, %from
  %empty = icmp eq i32 %left, 0
  br i1 %empty, label %done, label %send
send:
  %written = call i32 @system(i32 1, i32 %from, i32 %left, i32 64)
  %after = add i32 %from, %written
  %failed = icmp slt i32 %written, 0
  br i1 %failed, label %exit, label %part
done:
  %next.result = getelementptr [2 x i64], ptr %result, i32 1
  br label %sent
exit:
  %status = phi i32 [ 0, %sent ], [ 1, %send ]
  %ended = call i32 @system(i32 %status, i32 0, i32 0, i32 94)
  unreachable
}

define ptr @memset(ptr %to, i32 %byte, i32 %size) {
entry:
  %value = trunc i32 %byte to i8
  br label %next
next:
  %n = phi i32 [ 0, %entry ], [ %more, %write ]
  %end = icmp eq i32 %n, %size
  br i1 %end, label %done, label %write
write:
  %place = getelementptr i8, ptr %to, i32 %n
  store volatile i8 %value, ptr %place
  %more = add i32 %n, 1
  br label %next
done:
  ret ptr %to
}

define ptr @memcpy(ptr %to, ptr %from, i32 %size) {
entry:
  br label %next
next:
  %n = phi i32 [ 0, %entry ], [ %more, %write ]
  %end = icmp eq i32 %n, %size
  br i1 %end, label %done, label %write
write:
  %source = getelementptr i8, ptr %from, i32 %n
  %value = load volatile i8, ptr %source
  %place = getelementptr i8, ptr %to, i32 %n
  store volatile i8 %value, ptr %place
  %more = add i32 %n, 1
  br label %next
done:
  ret ptr %to
}

; Functions of the compiler's library, one bit of the quotient at a time.

define i64 @__hexagon_udivdi3(i64 %a, i64 %b) {
entry:
  br label %next
next:
  %n = phi i32 [ 63, %entry ], [ %less, %next ]
  %rest = phi i64 [ 0, %entry ], [ %left, %next ]
  %quotient = phi i64 [ 0, %entry ], [ %more, %next ]
  %place = zext i32 %n to i64
  %from = lshr i64 %a, %place
  %bit = and i64 %from, 1
  %twice = shl i64 %rest, 1
  %whole = or i64 %twice, %bit
  %fits = icmp uge i64 %whole, %b
  %taken = select i1 %fits, i64 %b, i64 0
  %left = sub i64 %whole, %taken
  %one = zext i1 %fits to i64
  %doubled = shl i64 %quotient, 1
  %more = or i64 %doubled, %one
  %less = sub i32 %n, 1
  %again = icmp sge i32 %less, 0
  br i1 %again, label %next, label %done
done:
  ret i64 %more
}

; Functions of the mathematical library. Numbers of 2**23 and above are whole.

declare float @llvm.fabs.f32(float)
declare float @llvm.copysign.f32(float, float)
declare i32 @llvm.ctlz.i32(i32, i1)

define float @rintf(float %x) {
  %size = call float @llvm.fabs.f32(float %x)
  %up = fadd float %size, 0x4160000000000000
  %whole = fsub float %up, 0x4160000000000000
  %signed = call float @llvm.copysign.f32(float %whole, float %x)
  %small = fcmp olt float %size, 0x4160000000000000
  %result = select i1 %small, float %signed, float %x
  ret float %result
}

define float @floorf(float %x) {
  %near = call float @rintf(float %x)
  %above = fcmp ogt float %near, %x
  %less = fsub float %near, 1.0
  %result = select i1 %above, float %less, float %near
  ret float %result
}

; 2**n * 2**m for n = k / 2 rounded down and m = k - n: both are normal numbers.
define internal float @scaled(float %x, i32 %k) {
  %n = ashr i32 %k, 1
  %m = sub i32 %k, %n
  %n.biased = add i32 %n, 127
  %n.bits = shl i32 %n.biased, 23
  %a = bitcast i32 %n.bits to float
  %m.biased = add i32 %m, 127
  %m.bits = shl i32 %m.biased, 23
  %b = bitcast i32 %m.bits to float
  %once = fmul float %x, %a
  %twice = fmul float %once, %b
  ret float %twice
}

; The exponent (low word) and the 24 bits (high word) of a positive number that is finite.
define internal i64 @parts(float %x) {
  %word = bitcast float %x to i32
  %bits = and i32 %word, 2147483647
  %biased = lshr i32 %bits, 23
  %fraction = and i32 %bits, 8388607
  %denormal = icmp eq i32 %biased, 0
  %zeros = call i32 @llvm.ctlz.i32(i32 %fraction, i1 false)
  %up = sub i32 %zeros, 8
  %normal = shl i32 %fraction, %up
  %led = or i32 %fraction, 8388608
  %mantissa = select i1 %denormal, i32 %normal, i32 %led
  %down = sub i32 1, %up
  %exponent.of = select i1 %denormal, i32 %down, i32 %biased
  %exponent = sub i32 %exponent.of, 150
  %low = zext i32 %exponent to i64
  %wide = zext i32 %mantissa to i64
  %high = shl i64 %wide, 32
  %both = or i64 %high, %low
  ret i64 %both
}

; A quotient that is denormal may be rounded twice.
define float @__hexagon_divsf3(float %a, float %b) {
entry:
  %sign = call float @llvm.copysign.f32(float 1.0, float %a)
  %size = call float @llvm.copysign.f32(float 1.0, float %b)
  %signs = fmul float %sign, %size
  %a.size = call float @llvm.fabs.f32(float %a)
  %b.size = call float @llvm.fabs.f32(float %b)
  %a.number = fcmp one float %a.size, 0x7FF0000000000000
  %b.number = fcmp one float %b.size, 0x7FF0000000000000
  %a.some = fcmp one float %a, 0.0
  %b.some = fcmp one float %b, 0.0
  %numbers = and i1 %a.number, %b.number
  %some = and i1 %a.some, %b.some
  %usual = and i1 %numbers, %some
  br i1 %usual, label %divide, label %special
special:
  %nan.a = fcmp uno float %a, %b
  %a.zero = xor i1 %a.some, true
  %b.zero = xor i1 %b.some, true
  %zeros = and i1 %a.zero, %b.zero
  %a.large = xor i1 %a.number, true
  %b.large = xor i1 %b.number, true
  %larges = and i1 %a.large, %b.large
  %none = or i1 %zeros, %larges
  %nan = or i1 %nan.a, %none
  %infinite = or i1 %a.large, %b.zero
  %infinity = fmul float %signs, 0x7FF0000000000000
  %zero = fmul float %signs, 0.0
  %limit = select i1 %infinite, float %infinity, float %zero
  %given = select i1 %nan, float 0x7FF8000000000000, float %limit
  ret float %given
divide:
  %a.parts = call i64 @parts(float %a)
  %b.parts = call i64 @parts(float %b)
  %a.bits = lshr i64 %a.parts, 32
  %b.bits = lshr i64 %b.parts, 32
  %a.up = shl i64 %a.bits, 27
  %quotient = call i64 @__hexagon_udivdi3(i64 %a.up, i64 %b.bits)
  %back = mul i64 %quotient, %b.bits
  %inexact = icmp ne i64 %back, %a.up
  %sticky = zext i1 %inexact to i64
  %twice = shl i64 %quotient, 1
  %all = or i64 %twice, %sticky
  %rounded = sitofp i64 %all to float
  %a.exponent = trunc i64 %a.parts to i32
  %b.exponent = trunc i64 %b.parts to i32
  %apart = sub i32 %a.exponent, %b.exponent
  %exponent = sub i32 %apart, 28
  %positive = call float @scaled(float %rounded, i32 %exponent)
  %result = fmul float %positive, %signs
  ret float %result
}

define float @__hexagon_sqrtf(float %x) {
entry:
  %some = fcmp ogt float %x, 0.0
  %number = fcmp one float %x, 0x7FF0000000000000
  %usual = and i1 %some, %number
  br i1 %usual, label %begin, label %special
special:
  %below = fcmp olt float %x, 0.0
  %given = select i1 %below, float 0x7FF8000000000000, float %x
  ret float %given
begin:
  %parts = call i64 @parts(float %x)
  %exponent = trunc i64 %parts to i32
  %odd = and i32 %exponent, 1
  %up = add i32 %odd, 26
  %place = zext i32 %up to i64
  %bits = lshr i64 %parts, 32
  %square = shl i64 %bits, %place
  %even = sub i32 %exponent, %odd
  br label %next
next:
  %n = phi i32 [ 25, %begin ], [ %less, %next ]
  %root = phi i64 [ 0, %begin ], [ %kept, %next ]
  %n.wide = zext i32 %n to i64
  %bit = shl i64 1, %n.wide
  %tried = or i64 %root, %bit
  %product = mul i64 %tried, %tried
  %fits = icmp ule i64 %product, %square
  %kept = select i1 %fits, i64 %tried, i64 %root
  %less = sub i32 %n, 1
  %again = icmp sge i32 %less, 0
  br i1 %again, label %next, label %done
done:
  %whole = mul i64 %kept, %kept
  %inexact = icmp ne i64 %whole, %square
  %sticky = zext i1 %inexact to i64
  %twice = shl i64 %kept, 1
  %all = or i64 %twice, %sticky
  %rounded = sitofp i64 %all to float
  %half = ashr i32 %even, 1
  %of = sub i32 %half, 14
  %result = call float @scaled(float %rounded, i32 %of)
  ret float %result
}

declare double @llvm.fabs.f64(double)
declare double @llvm.copysign.f64(double, double)

; Numbers of 2**52 and above are whole.
define double @floor(double %x) {
  %size = call double @llvm.fabs.f64(double %x)
  %up = fadd double %size, 0x4330000000000000
  %whole = fsub double %up, 0x4330000000000000
  %signed = call double @llvm.copysign.f64(double %whole, double %x)
  %small = fcmp olt double %size, 0x4330000000000000
  %near = select i1 %small, double %signed, double %x
  %above = fcmp ogt double %near, %x
  %less = fsub double %near, 1.0
  %result = select i1 %above, double %less, double %near
  ret double %result
}

; The upper half of the bits of a number: its product with 2**27 + 1 loses the others.
define internal double @upper(double %x) {
  %large = fmul double %x, 0x41A0000002000000
  %rest = fsub double %large, %x
  %half = fsub double %large, %rest
  ret double %half
}

; The product and what it lost. A sum that needs more than a number's bits may be rounded twice.
define double @fma(double %a, double %b, double %c) {
  %product = fmul double %a, %b
  %a.high = call double @upper(double %a)
  %a.low = fsub double %a, %a.high
  %b.high = call double @upper(double %b)
  %b.low = fsub double %b, %b.high
  %hh = fmul double %a.high, %b.high
  %hl = fmul double %a.high, %b.low
  %lh = fmul double %a.low, %b.high
  %ll = fmul double %a.low, %b.low
  %e.1 = fsub double %hh, %product
  %e.2 = fadd double %e.1, %hl
  %e.3 = fadd double %e.2, %lh
  %lost = fadd double %e.3, %ll
  %sum = fadd double %product, %c
  %back = fsub double %sum, %product
  %own = fsub double %sum, %back
  %of.product = fsub double %product, %own
  %of.c = fsub double %c, %back
  %sum.lost = fadd double %of.product, %of.c
  %less = fadd double %lost, %sum.lost
  %result = fadd double %sum, %less
  ret double %result
}
