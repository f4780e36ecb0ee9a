"""What notebooks, `ls --tree` and `report` show of models: trees, totals and blocks of HTML."""
