// Package must ends a test when something that the test needs fails. It depends on no
// other package of cairn, and only tests import it.
package must

// TB is the part of testing.TB that ends a test. Tests of package rapid have it too.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// Do ends the test if err is not nil.
func Do(t TB, err error) {
	if err != nil {
		t.Helper() // only now: it takes time, and a loop may call Do
		t.Fatal(err)
	}
}

// Get takes the results of a call. It returns a function that returns v, and that ends
// the test if err is not nil: store := must.Get(file.Open(dir, nil))(t).
func Get[T any](v T, err error) func(t TB) T {
	return func(t TB) T {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return v
	}
}

// Value returns v, and panics if err is not nil. It is for functions that have no test at
// hand, such as the functions of ranks.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
