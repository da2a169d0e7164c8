"""Commands that read a run or a config; nothing imports them."""
