"""Running text: QuickThoughts, and transfer tasks."""
