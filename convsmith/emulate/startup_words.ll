; The code that begins the run of a Linux process of 32 bits: calls, then results on standard output, then the end.
;
; NUMBERS is the address of the page that `Image.finish` writes: the top of the stack, how many calls and how many
; results there are, and the address of a list of them: (function, argument block, part, number of parts) for each call,
; then (address, bytes) for each result. Linux has given the process a stack of its own. The numbers have 64 bits, of
; which the lower half is read. SYSTEM is the function that calls the system, WRITE and EXIT its numbers.

target triple = "{TRIPLE}"

{SYSTEM}

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
  %written = call i32 @system(i32 1, i32 %from, i32 %left, i32 {WRITE})
  %after = add i32 %from, %written
  %failed = icmp slt i32 %written, 0
  br i1 %failed, label %exit, label %part
done:
  %next.result = getelementptr [2 x i64], ptr %result, i32 1
  br label %sent
exit:
  %status = phi i32 [ 0, %sent ], [ 1, %send ]
  %ended = call i32 @system(i32 %status, i32 0, i32 0, i32 {EXIT})
  unreachable
}
