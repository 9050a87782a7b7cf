"""The report: one page about the runs and their results, as a self-contained HTML file and as Markdown."""
