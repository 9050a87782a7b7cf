"""The report: one page of what was run and what came out, as HTML that opens anywhere and as Markdown."""
