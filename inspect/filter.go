package inspect

// Filter returns a function that keeps the names that one of the globs in
// selected matches, or all where there are none, unless one in excluded matches
// too. The error wraps ErrPattern.
func Filter(selected, excluded []string) (func(name string) bool, error) {
	in, err := globs(selected)
	if err != nil {
		return nil, err
	}
	out, err := globs(excluded)
	if err != nil {
		return nil, err
	}
	return func(name string) bool { return (len(in) == 0 || anyMatch(in, name)) && !anyMatch(out, name) }, nil
}

func globs(patterns []string) ([]func(string) bool, error) {
	var out []func(string) bool
	for _, p := range patterns {
		match, err := Glob(p)
		if err != nil {
			return nil, err
		}
		out = append(out, match)
	}
	return out, nil
}

func anyMatch(matches []func(string) bool, name string) bool {
	for _, m := range matches {
		if m(name) {
			return true
		}
	}
	return false
}
