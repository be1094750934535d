"""What fences are driven with and judged by: in their bench, and in their tests."""
