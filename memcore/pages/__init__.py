"""The page, in parts: the sidebar that makes a Scenario, and the views that show what memcore says about it."""
