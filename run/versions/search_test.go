package versions_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage"
)

// through returns a value as another process receives it.
func through[T any](t *testing.T, v *T) *T {
	t.Helper()
	out := new(T)
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(v))(t), out))
	return out
}

// The outcomes of an attempt, or of a look. broken is about no version.
var (
	errGone    = fmt.Errorf("load: %w", storage.ErrChanged)
	errDamaged = fmt.Errorf("load: %w", storage.ErrCorrupt)
	errUnfit   = fmt.Errorf("load: %w", plan.ErrMissing)
	errRecipe  = &group.RemoteError{Text: "padding is not zero", Codes: []string{"recipe.check"}}
	errBroken  = errors.New("the network is down")
)

// Each outcome of an attempt, when a version is read for the first and for the second time.
func TestReport(t *testing.T) {
	version := versions.Version{Step: 7, SaveID: "s"}
	older := &versions.Version{Step: 5, SaveID: "o"} // did not fit
	damage := map[int64]string{7: "s"}
	for _, c := range []struct {
		name    string
		step    bool // a version is wanted, not the newest
		again   bool
		err     error
		over    bool
		search  versions.Search // without Now, Step and Tried; Err is the attempt's if true
		known   versions.Known
		problem string
	}{
		{name: "loaded", over: true},
		{name: "loaded", again: true, over: true, search: versions.Search{Again: true}},
		{name: "gone", err: errGone, search: versions.Search{Gone: 1}, known: versions.Known{Unfit: older}, problem: "version 7: "},
		{name: "gone", again: true, err: errGone, search: versions.Search{Gone: 1}, known: versions.Known{Unfit: older}, problem: "version 7, read again: "},
		{name: "gone", step: true, err: errGone, search: versions.Search{Gone: 1}, known: versions.Known{Unfit: older}, problem: "version 7: "},
		{name: "damaged", err: errDamaged, search: versions.Search{Again: true}, known: versions.Known{Unfit: older}, problem: "version 7: "},
		{name: "damaged", again: true, err: errDamaged, search: versions.Search{Damaged: true}, known: versions.Known{Unfit: older, Damaged: damage}, problem: "version 7, read again: "},
		{name: "damaged", step: true, again: true, err: errDamaged, search: versions.Search{Damaged: true}, known: versions.Known{Unfit: older, Damaged: damage}, problem: "version 7, read again: "},
		{name: "unfit", err: errUnfit, over: true, known: versions.Known{Unfit: &version}, problem: "version 7: "},
		{name: "unfit", again: true, err: errUnfit, over: true, known: versions.Known{Unfit: &version}, problem: "version 7, read again: "},
		{name: "unfit, by a recipe", err: errRecipe, over: true, known: versions.Known{Unfit: &version}, problem: "version 7: "},
		{name: "unfit", step: true, err: errUnfit, over: true, known: versions.Known{Unfit: older}, problem: "version 7: "},
		{name: "failed", err: errBroken, over: true, known: versions.Known{Unfit: older}, problem: "version 7: "},
		{name: "failed", again: true, err: errBroken, over: true, known: versions.Known{Unfit: older}, problem: "version 7, read again: "},
		{name: "cancelled", err: context.Canceled, over: true, known: versions.Known{Unfit: older}, problem: "version 7: "},
	} {
		s := &versions.Search{Again: c.again}
		if c.step {
			s.Step = &version.Step
		}
		s.Take(&versions.Choice{Version: version})
		known := versions.Known{Unfit: older}

		over := s.Report(&known, c.err)
		name := fmt.Sprintf("%s (again: %v, step: %v)", c.name, c.again, c.step)
		if over != c.over || s.Again != c.search.Again || s.Gone != c.search.Gone || s.Damaged != c.search.Damaged {
			t.Errorf("%s: Report = %v, %+v; want %v, %+v", name, over, s, c.over, c.search)
		}
		if !reflect.DeepEqual(known, c.known) {
			t.Errorf("%s: known %+v; want %+v", name, known, c.known)
		}
		if c.err == nil {
			continue
		}
		if len(s.Tried) != 1 || s.Tried[0].Text != c.problem+c.err.Error() || s.Err.Text != s.Tried[0].Text || !errors.Is(s.Err, c.err) {
			t.Errorf("%s: tried %v, error %v", name, s.Tried, s.Err)
		}
	}
}

// Each outcome of a look, in each state of a search.
func TestChoose(t *testing.T) {
	first := &group.RemoteError{Text: "the first error", Codes: []string{"storage.corrupt"}}
	last := versions.Known{Last: &versions.Version{Step: 5, SaveID: "l"}}
	const found = "found"
	for name, c := range map[string]struct {
		search versions.Search
		known  versions.Known
		looks  string // the bounds of the first look; empty: Choose does not look
		// The reason of the Over if versions are gone, and if all are damaged.
		gone, damaged string
	}{
		"the first look":                        {versions.Search{}, versions.Known{}, "all", versions.None, versions.Damaged},
		"the first look, with a last version":   {versions.Search{}, last, "after 4", versions.None, versions.Damaged},
		"a step":                                {versions.Search{Step: new(int64(3))}, last, "after 2 before 4", versions.None, versions.Damaged},
		"a step, after a version that was gone": {versions.Search{Step: new(int64(3)), Gone: 1, Looks: 1, Err: first}, last, "after 2 before 4", versions.None, versions.Damaged},
		"a step that is damaged":                {versions.Search{Step: new(int64(3)), Damaged: true, Looks: 1, Err: first}, last, "", versions.Damaged, versions.Damaged},
		"after a version that was gone":         {versions.Search{Gone: 1, Looks: 1, Err: first}, last, "after 4", versions.Gone, versions.Damaged},
		"after a damaged version":               {versions.Search{Damaged: true, Looks: 1, Err: first}, versions.Known{}, "all", versions.Damaged, versions.Damaged},
		"after a damaged one, with a last":      {versions.Search{Damaged: true, Looks: 1, Err: first}, last, "after 5", versions.Damaged, versions.Damaged},
		"after a damaged one, and one gone":     {versions.Search{Damaged: true, Gone: 1, Looks: 2, Err: first}, last, "after 5", versions.Damaged, versions.Damaged},
		"all looks are made":                    {versions.Search{Gone: 16, Looks: 16, Err: first}, last, "", versions.Gone, versions.Gone},
		"all looks are made, one was damaged":   {versions.Search{Gone: 15, Damaged: true, Looks: 16, Err: first}, last, "", versions.Damaged, versions.Damaged},
		"read again":                            {versions.Search{Again: true, Now: &versions.Choice{Version: versions.Version{Step: 9}}, Looks: 1, Err: first}, last, "", found, found},
	} {
		for outcome, err := range map[string]error{"found": nil, "gone": storage.ErrNotFound, "damaged": storage.ErrCorrupt, "failed": errBroken} {
			s, looks := through(t, &c.search), ""
			must.Do(t, s.Check())
			got, gotErr := s.Choose(t.Context(), &c.known, func(_ context.Context, after, before *int64) (*run.Found, error) {
				if looks == "" {
					looks = bounds(after, before)
				}
				if err != nil {
					return nil, err
				}
				return &run.Found{Step: new(int64(9))}, nil
			}, 0)

			if looks != c.looks {
				t.Errorf("%s, %s: looks %q; want %q", name, outcome, looks, c.looks)
			}
			want := map[string]string{"gone": c.gone, "damaged": c.damaged}[outcome]
			if looks == "" {
				want = c.gone
			}
			over, isOver := errors.AsType[*versions.Over](gotErr)
			switch {
			case want == found || looks != "" && outcome == "found":
				if stepOf(got) != 9 || gotErr != nil {
					t.Errorf("%s, %s: Choose = %+v, %v; want version 9", name, outcome, got, gotErr)
				}
			case looks != "" && outcome == "failed":
				if isOver || !errors.Is(gotErr, errBroken) {
					t.Errorf("%s, %s: Choose = %v; want %v", name, outcome, gotErr, errBroken)
				}
			case !isOver || over.Reason != want:
				t.Errorf("%s, %s: Choose = %+v, %v; want an Over, %s", name, outcome, got, gotErr, want)
			case c.search.Damaged || over.Reason == versions.Gone:
				if !errors.Is(over, over.Err) || over.Err.Error() != first.Text || !strings.HasPrefix(over.Error(), first.Text+"; ") {
					t.Errorf("%s, %s: Choose = %v; want the first error", name, outcome, over)
				}
			case !errors.Is(over, err):
				t.Errorf("%s, %s: Choose = %v; want %v", name, outcome, over, err)
			}
		}
	}
}

// bounds describes a look.
func bounds(after, before *int64) string {
	var out []string
	if after != nil {
		out = append(out, fmt.Sprint("after ", *after))
	}
	if before != nil {
		out = append(out, fmt.Sprint("before ", *before))
	}
	if out == nil {
		return "all"
	}
	return strings.Join(out, " ")
}

// Whole searches, between processes: the versions that are tried, and how each attempt ends.
func TestSearches(t *testing.T) {
	chain := weights{1: "a", 2: "b", 3: "c"}
	last := &versions.Version{Step: 1, SaveID: "a"}
	replaced := func(w weights) { w[3] = "again" }
	removed := func(w weights) { delete(w, 3) }
	for name, c := range map[string]struct {
		run      weights
		last     *versions.Version
		step     *int64
		outcomes []error // of the attempts; the rest succeed
		event    func(w weights)
		tried    string // the steps of the attempts
		problems int
		want     string // the end of the error
	}{
		"the newest":                          {run: chain, tried: "3"},
		"an older one":                        {run: chain, step: new(int64(2)), tried: "2"},
		"damaged once":                        {run: chain, outcomes: []error{errDamaged}, tried: "3 3", problems: 1},
		"damaged":                             {run: chain, outcomes: []error{errDamaged, errDamaged}, tried: "3 3 2", problems: 2},
		"two are damaged":                     {run: chain, outcomes: []error{errDamaged, errDamaged, errDamaged, errDamaged}, tried: "3 3 2 2 1", problems: 4},
		"all newer ones are damaged":          {run: chain, last: last, outcomes: []error{errDamaged, errDamaged, errDamaged, errDamaged}, tried: "3 3 2 2", problems: 4, want: "version 3, read again: load: checkpoint is corrupt; no newer version can be loaded, so the state stays as it is"},
		"a damaged step":                      {run: chain, last: last, step: new(int64(2)), outcomes: []error{errDamaged, errDamaged}, tried: "2 2", problems: 2, want: "version 2, read again: load: checkpoint is corrupt; the state stays as it is"},
		"damaged, then replaced":              {run: chain, outcomes: []error{errDamaged, errGone}, event: replaced, tried: "3 3 3", problems: 2},
		"replaced":                            {run: chain, outcomes: []error{errGone, errGone}, event: replaced, tried: "3 3 3", problems: 2},
		"removed":                             {run: chain, outcomes: []error{errGone}, event: removed, tried: "3 2", problems: 1},
		"a step is removed":                   {run: chain, step: new(int64(3)), outcomes: []error{errGone}, event: removed, tried: "3", problems: 1, want: "version 3: no checkpoint here"},
		"removed, and no other one is newer":  {run: weights{1: "a", 3: "c"}, last: &versions.Version{Step: 2}, outcomes: []error{errGone}, event: removed, tried: "3", problems: 1, want: "nor could later versions be loaded, so the state stays as it is"},
		"replaced all the time":               {run: chain, outcomes: repeated(errGone, 16), event: replaced, tried: strings.TrimSpace(strings.Repeat("3 ", 16)), problems: 16, want: "version 3: load: checkpoint was replaced meanwhile; nor could later versions be loaded, so the state stays as it is"},
		"replaced 15 times":                   {run: chain, outcomes: repeated(errGone, 15), event: replaced, tried: strings.TrimSpace(strings.Repeat("3 ", 16)), problems: 15},
		"it does not fit":                     {run: chain, outcomes: []error{errUnfit}, tried: "3", problems: 1, want: errUnfit.Error()},
		"it fails":                            {run: chain, outcomes: []error{errDamaged, errBroken}, tried: "3 3", problems: 2, want: errBroken.Error()},
		"no version":                          {run: weights{}, want: "no checkpoint here"},
		"no version, with a last one":         {run: weights{}, last: last, want: "no version 1 or newer, so the state stays as it is; Prepare with a step goes back: no checkpoint here"},
		"no such version":                     {run: chain, step: new(int64(7)), want: "version 7: no checkpoint here"},
		"newer ones cannot be opened":         {run: weights{1: "a", 2: "damaged", 3: "damaged"}, tried: "1", problems: 2},
		"they are named once":                 {run: weights{1: "a", 2: "b", 3: "damaged"}, outcomes: []error{errGone, errDamaged, errDamaged}, tried: "2 2 2 1", problems: 4},
		"a step cannot be opened":             {run: weights{1: "a", 2: "damaged"}, step: new(int64(2)), want: "version 2: checkpoint is corrupt"},
		"no version can be opened":            {run: weights{2: "damaged"}, want: "checkpoint is corrupt"},
		"a damaged one, and one that is gone": {run: chain, outcomes: []error{errDamaged, errDamaged, errGone}, tried: "3 3 2 2", problems: 3},
	} {
		w, known, s, tried := weights{}, &versions.Known{Last: c.last}, &versions.Search{Step: c.step}, []string{}
		for step, save := range c.run {
			w[step] = save
		}
		var err error
		for over := false; !over; {
			known, s = through(t, known), through(t, s)
			must.Do(t, s.Check())
			var v *versions.Choice
			if v, err = s.Choose(t.Context(), known, w.look, 0); err != nil {
				break
			}
			s.Take(v)
			tried = append(tried, fmt.Sprint(v.Step))
			if i := len(tried) - 1; i < len(c.outcomes) {
				err = c.outcomes[i]
				if c.event != nil {
					c.event(w)
				}
			}
			over = s.Report(known, err)
		}
		if got := strings.Join(tried, " "); got != c.tried || len(s.Tried) != c.problems {
			t.Errorf("%s: tried %s, problems %v; want %s and %d problems", name, got, s.Tried, c.tried, c.problems)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: the error is %v; want %s", name, err, c.want)
		}
	}
}

// repeated returns n times an error.
func repeated(err error, n int) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// A pause ends with its context.
func TestChooseIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	s := &versions.Search{Gone: 2, Looks: 2, Err: new(group.RemoteError)}
	if _, err := s.Choose(ctx, new(versions.Known), failing(storage.ErrNotFound), 1<<60); !errors.Is(err, errBroken) {
		t.Errorf("Choose = %v; want %v", err, errBroken)
	}
}

func TestCheck(t *testing.T) {
	for name, s := range map[string]*versions.Search{
		"negative looks":          {Looks: -1},
		"negative gone":           {Gone: -1},
		"no version again":        {Again: true},
		"damage without an error": {Damaged: true},
		"gone without an error":   {Gone: 1},
		"looks without an error":  {Looks: 16},
	} {
		if err := s.Check(); err == nil {
			t.Errorf("%s: Check = nil", name)
		}
	}
}
