package launch

import "testing"

func TestExitsInWords(t *testing.T) {
	for want, e := range map[string]Exit{
		"exited with code 3 at once":        {Code: 3, Seconds: 0.0004},
		"exited with code 3 after 1ms":      {Code: 3, Seconds: 0.001},
		"exited with code 3 after 43ms":     {Code: 3, Seconds: 0.0431},
		"exited with code 3 after 1.2s":     {Code: 3, Seconds: 1.234},
		"was ended by SIGSEGV after 1h2m5s": {Code: 139, Signal: "SIGSEGV", Seconds: 3725.4},
		"was ended by signal 34 after 1m0s": {Code: 162, Signal: "signal 34", Seconds: 60},
		"exited with code 3 after 1m1s":     {Code: 3, Seconds: 60.6},
		"exited with code 0 after 500ms":    {Seconds: 0.5},
		"exited with code 255 after 59.9s":  {Code: 255, Seconds: 59.94},
		"was ended by SIGKILL after 3ms":    {Code: 137, Signal: "SIGKILL", Seconds: 0.003},
	} {
		if got := e.String(); got != want {
			t.Errorf("%+v = %q; want %q", e, got, want)
		}
	}
}
