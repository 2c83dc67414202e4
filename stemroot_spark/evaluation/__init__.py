"""How well sampling methods do on launches whose times are all known: designs, protocols and scores, in pure numpy."""
