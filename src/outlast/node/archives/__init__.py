"""Archives from outside: read in one pass, unpacked safely, or indexed and left as they are."""
