"""Figures: each file draws one result on given axes. The only folder that imports matplotlib."""
