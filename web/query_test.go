package web

import (
	"net/url"
	"testing"
)

// Whatever the parameters of a request are, they are within their bounds, or an error.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{"", "n=1&s=0:5", "n=-1", "n=99999999999999999999", "s=5:4", "s=:", "s=1:2:3", "n=1&n=2", "p=[", "p=*.w", "p=\\", "s=9223372036854775807:9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q := newQuery(values, "n", "s", "p", "c", "buckets", "scale")
		n, s, match, choice, h := q.count("n", 7, 1, 100), q.span("s"), q.pattern("p"), q.choice("c", "a", "b"), q.histogram()
		if q.err != nil {
			return
		}
		if n < 1 || n > 100 || s[0] < 0 || s[1] < s[0] || s != [2]int64{} && s[0] == s[1] || choice != "a" && choice != "b" || h.Buckets < 1 || h.Buckets > maxBuckets {
			t.Errorf("%q: %d, %v, %q, %+v", text, n, s, choice, h)
		}
		if match != nil {
			match("model.layers.0.w")
		}
	})
}
