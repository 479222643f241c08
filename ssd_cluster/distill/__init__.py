"""Make a draft for any target: collect its own text and laws, cut, train, report. Each stage can be resumed."""
