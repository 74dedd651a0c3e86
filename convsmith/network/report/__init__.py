"""What a network does and how long its steps take, as a text and as a page."""
