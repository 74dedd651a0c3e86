"""Reports of what a network does and of how long its steps take, as a text and as a page."""
