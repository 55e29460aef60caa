"""Pages for people: server-rendered, styled and scripted from this package alone, so that they work offline."""
