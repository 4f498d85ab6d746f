package launch_test

func playSignals(role, rank string) {}
