package collective

import "testing"

// Every piece goes once at every step, and after it went at the step before.
func TestUnits(t *testing.T) {
	for steps := range 8 {
		for n := range 6 {
			us := units(steps, n)
			if len(us) != steps*n {
				t.Fatalf("units(%d, %d) has %d; want %d", steps, n, len(us), steps*n)
			}
			number := map[[2]int]int{}
			for i, u := range us {
				before, ok := number[[2]int{u.step - 1, u.piece}]
				if u.step > 0 && (!ok || before != u.after) {
					t.Fatalf("units(%d, %d)[%d] = %+v; want it after %d", steps, n, i, u, before)
				}
				if _, twice := number[[2]int{u.step, u.piece}]; twice {
					t.Fatalf("units(%d, %d)[%d] = %+v is there twice", steps, n, i, u)
				}
				number[[2]int{u.step, u.piece}] = i
			}
		}
	}
}
