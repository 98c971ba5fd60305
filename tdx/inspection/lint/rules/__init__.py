"""One rule, or a few related ones, in each module; a module that is added here is found."""
