package run

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestParsePolicy(t *testing.T) {
	for text, want := range map[string]Policy{
		"":                                {},
		" all ":                           {},
		"last 3":                          {Rules: []Rule{Last(3)}},
		"Last 3,every 500 steps":          {Rules: []Rule{Last(3), EverySteps(500)}},
		"every step":                      {Rules: []Rule{EverySteps(1)}},
		"every hour":                      {Rules: []Rule{Every(time.Hour)}},
		"every 1 hour":                    {Rules: []Rule{Every(time.Hour)}},
		"every 6 hours":                   {Rules: []Rule{Every(6 * time.Hour)}},
		"every day, every week":           {Rules: []Rule{Every(24 * time.Hour), Every(7 * 24 * time.Hour)}},
		"best 2 by loss":                  {Rules: []Rule{Best{N: 2, By: "loss"}}},
		"best 2 by lowest loss":           {Rules: []Rule{Best{N: 2, By: "loss"}}},
		"best 1 by highest eval/accuracy": {Rules: []Rule{Best{N: 1, By: "eval/accuracy", Highest: true}}},
		"best 1 by lowest highest":        {Rules: []Rule{Best{N: 1, By: "highest"}}},
		"tagged":                          {Rules: []Rule{Tagged("")}},
		"tagged release":                  {Rules: []Rule{Tagged("release")}},
		"within 12 hours":                 {Rules: []Rule{Within(12 * time.Hour)}},
		"at most 2 TB":                    {AtMost: 2e12},
		"at most 1.5GiB, last 2":          {Rules: []Rule{Last(2)}, AtMost: 3 << 29},
	} {
		p, err := ParsePolicy(text)
		if err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("ParsePolicy(%q) = %#v, %v; want %#v", text, p, err, want)
		}
		if again, err := ParsePolicy(p.String()); err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("ParsePolicy(%q) = %#v, %v; want %#v", p, again, err, want)
		}
	}
}

func TestPolicyText(t *testing.T) {
	const text = "last 3, every 5000 steps, every 6 hours, every day, best 2 by loss, best 1 by highest accuracy, tagged, tagged release, within 90 minutes, at most 2 TB"
	if got := must.Get(ParsePolicy(text))(t).String(); got != text {
		t.Errorf("the text is %q; want %q", got, text)
	}
	if got := (Policy{}).String(); got != "all" {
		t.Errorf("the text of an empty policy is %q", got)
	}
}

// An error names the word that is wrong.
func TestParsePolicyErrors(t *testing.T) {
	for text, word := range map[string]string{
		"lats 3":                          `"lats" is not a rule`,
		"last":                            "a number is missing",
		"last x":                          `"x" is not a number`,
		"last 0":                          "0 is less than 1",
		"last -1":                         "-1 is less than 1",
		"last 99999999999":                "too many",
		"last 3 steps":                    `"steps" is unexpected`,
		"last 3,,":                        "nothing between two commas",
		"every":                           "a number is missing",
		"every 5":                         "5",
		"every 5 parsecs":                 `"parsecs" is not a unit`,
		"every fortnight":                 `"fortnight" is not a unit`,
		"every 99999999999999 days":       "too long",
		"every 6 hours long":              `"long" is unexpected`,
		"best":                            "a number is missing",
		"best 2":                          `"by" and a metric are missing`,
		"best 2 of loss":                  `"of"`,
		"best 2 by":                       "the metric is missing",
		"best 2 by highest":               "the metric is missing",
		"best 2 by loss now":              `"now" is unexpected`,
		"tagged a b":                      `"b" is unexpected`,
		"within hours":                    `"hours" is not a number`,
		"within 3":                        "a unit is missing",
		"at 2 TB":                         `want "at most"`,
		"at most":                         `"" is no size`,
		"at most 0":                       "0 is less than 1",
		"at most 2":                       `"2" has no unit`,
		"every 5000":                      "a unit is missing: want steps, seconds",
		"within 12h":                      `"12h" is not a whole number`,
		"at most 2 parsecs":               `"2 parsecs" is no size`,
		"at most 1 GB, at most 2":         "two ceilings",
		"all, last 3":                     "all stands alone",
		strings.Repeat("last 3,", 10_000): "bytes",
		strings.Repeat("last 3,", 150) + "last 3": "151 rules",
	} {
		p, err := ParsePolicy(text)
		if err == nil || !strings.Contains(err.Error(), word) || !errors.Is(err, ErrPolicy) || !errors.Is(err, storage.ErrOptions) || !strings.HasPrefix(err.Error(), "unusable policy: ") {
			t.Errorf("ParsePolicy(%.40q) = %v, %v; want an error with %q", text, p, err, word)
		}
	}
}

// Policies that were not made of a text are checked too.
func TestPolicyCheck(t *testing.T) {
	for _, p := range []Policy{
		{Rules: []Rule{Last(0)}},
		{Rules: []Rule{EverySteps(-1)}},
		{Rules: []Rule{Every(time.Millisecond)}},
		{Rules: []Rule{Within(-time.Hour)}},
		{Rules: []Rule{Best{N: 1}}},
		{Rules: []Rule{Best{N: 0, By: "loss"}}},
		{Rules: []Rule{Tagged("a b")}},
		{Rules: []Rule{nil}},
		{AtMost: -1},
	} {
		if err := p.Check(); !errors.Is(err, ErrPolicy) {
			t.Errorf("Check of %#v = %v; want ErrPolicy", p, err)
		}
	}
	if err := (Policy{Rules: []Rule{Last(1), Tagged("")}, AtMost: 1}).Check(); err != nil {
		t.Error(err)
	}
}

// A policy that ParsePolicy accepts has a text that ParsePolicy turns into the same policy.
func FuzzParsePolicy(f *testing.F) {
	for _, text := range []string{
		"", "all", "last 3, every 5000 steps, best 2 by loss", "every 6 hours, every day", "best 2 by highest accuracy, best 1 by lowest lowest",
		"tagged, tagged release", "within 12 hours, at most 2 TB", "at most 1.5gib", "at most 9007199254740993", "last 99999999999999999999",
		"every 3000000000 weeks", "last\u00a03", "best 1 by \xff", ",", "at most 1e18", "at most 0x1p10", "tagged \ufffd",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy(text)
		if err != nil {
			if !errors.Is(err, ErrPolicy) {
				t.Errorf("the error does not wrap ErrPolicy: %v", err)
			}
			return
		}
		if err := p.Check(); err != nil {
			t.Errorf("ParsePolicy(%q) is invalid: %v", text, err)
		}
		again, err := ParsePolicy(p.String())
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("ParsePolicy(%q) = %#v; and of its text %q %#v, %v", text, p, p, again, err)
		}
	})
}
