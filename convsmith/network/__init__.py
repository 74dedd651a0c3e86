"""Networks: graphs of operators that become one function, in Python, in C, and in a file."""
