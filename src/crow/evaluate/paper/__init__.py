"""Each table and figure of the paper as one function under one name, our value beside the one published in that place."""
