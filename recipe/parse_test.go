package recipe_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/recipe"
)

// sides is the first line of the recipes of tests.
const sides = "sides = [\"a\", \"b\"]\n"

// rule returns a rule of one name for each side, after the line with the sides.
func rule(a, b string) string {
	return fmt.Sprintf(sides+"[[rule]]\na = %q\nb = %q\n", a, b)
}

// TestParseErrors checks the text of the errors, with the number of the line.
func TestParseErrors(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for _, c := range []struct{ name, text, want string }{
		{"not TOML", sides + "\nx = = 1", "line 3: "},
		{"no sides", "[[rule]]\na = 'x'", `line 1: sides: want the names of the two forms`},
		{"one side", "about = 'x'\nsides = ['a']", `line 2: sides: want the names of the two forms`},
		{"equal sides", "sides = ['a', 'a']", `line 1: sides: want`},
		{"a side that is a key", "sides = ['a', 'when']", `line 1: sides: "when" cannot be the name of a form`},
		{"about", "about = 1\n" + sides, "line 1: about is not a text"},
		{"families", sides + "families = [1]", "line 2: families: 1 is not a text"},
		{"no rules", sides, "it has no rules"},
		{"unknown key", sides + "\n[[rule]]\na = 'x'\nb = 'y'\n[extra]\nx = 1", `line 6: unknown key "extra"; known are about, sides`},
		{"unknown key in a rule", sides + "[[rule]]\na = 'x'\nb = 'y'\n[[rule]]\na = 'x'\n\ncolour = 1\nb = 'y'", `line 8: unknown key "colour" in [[rule]]; known are a, b, when`},
		{"unknown key in an inline rule", sides + "\nrule = [{a = 'x', b = 'y', colour = 1}]", `line 3: unknown key "colour" in [[rule]]`},
		{"key of another table", sides + "[[drop]]\na = 'x'\nreason = 'r'\ntie = true", `line 5: unknown key "tie" in [[drop]]`},
		{"rules as a table", sides + "[rule]\na = 'x'", "line 2: rule: write [[rule]] before each one"},
		{"one side of a rule", sides + "[[rule]]\na = 'x'", "line 2: want tensors of b"},
		{"no names", sides + "[[rule]]\na = []\nb = 'y'", "line 3: a: want a name"},
		{"an empty name", rule("x | ", "y"), `line 3: a: "x | ": a name is empty`},
		{"{ without }", rule("x.{i", "y"), "line 3: a: \"x.{i\": { without }"},
		{"} without {", rule("x.i}", "y"), "line 3: a: \"x.i}\": } without {"},
		{"an empty hole", rule("x.{}", "y"), "line 3: a: \"x.{}\": {}: "},
		{"a long name", rule(long, "y"), "a name of more than 1024 characters"},
		{"a long pattern", sides + "[[drop]]\na = '" + long + "'\nreason = 'r'", "line 3: a: a pattern of more than 1024 characters"},
		{"many holes", rule("x"+strings.Repeat(".{i}", 17), "y"), "more than 16 holes"},
		{"a layout without end", rule("x [n", "y [n]"), `line 3: a: "x [n": the layout does not end with ]`},
		{"an axis twice", rule("x [n, m n]", "y [n, m]"), `line 3: a: "x [n, m n]": layout: the axis n is there twice`},
		{"a number twice", rule("x [2 2]", "y [2 2]"), "layout: the axis 2 is there twice"},
		{"two sums", rule("x [k + m, k + n]", "y"), "layout: it has more than one sum"},
		{"two sums in a dimension", rule("x [(k + m) (k + n)]", "y"), "layout: a dimension has more than one sum"},
		{"a sum in a sum", rule("x [k + (m + n)]", "y"), `layout: "(" is in the wrong place`},
		{"a term without axes", rule("x [k + ]", "y"), "layout: a term of a sum is empty"},
		{"parentheses", rule("x [(k + m]", "y"), "layout: its parentheses do not match"},
		{"parentheses the other way", rule("x [) k (]", "y"), `layout: ")" is in the wrong place`},
		{"a comma at the end", rule("x [k,]", "y"), "layout: it ends with a comma"},
		{"an empty dimension", rule("x [k,,m]", "y"), "layout: a dimension is empty"},
		{"a rest twice", rule("x [..., ...]", "y"), "layout: it has ... twice"},
		{"a rest beside an axis", rule("x [n ...]", "y"), `layout: "..." is in the wrong place`},
		{"a character", rule("x [n * m]", "y"), `layout: "*" has no meaning in a layout`},
		{"a character of several bytes", rule("x [größe]", "y"), `layout: "ö" has no meaning in a layout`},
		{"a size of zero", rule("x [0]", "y"), `layout: "0" is not a size`},
		{"a size with a zero", rule("x [02]", "y"), `layout: "02" is not a size`},
		{"a size that is too large", rule("x [9223372036854775807]", "y"), `is not a size`},
		{"an unknown function in a layout", rule("x [n + ones(m), k]", "y"), "ones( has no meaning: write zeros(n) or drop(n)"},
		{"many words", rule("x ["+strings.Repeat("n ", 257)+"]", "y"), "layout: it has more than 256 words"},
		{"many dimensions", rule("x [a"+strings.Repeat(", 1", 70)+"]", "y"), "layout: it has more than 64 dimensions"},
		{"a capture that is an axis", rule("x.{n} [n, m]", "y.{n} [m]"), "{n} is in the name, so it cannot be an axis too"},
		{"parts", rule("x [k + m]", "y [k]"), "line 2: a has 2 parts, b has 1"},
		{"axes", rule("x [k, m]", "y [k, n]"), "line 2: part 1 of a has the axes [k m], of b [k n]"},
		{"a rest on one side", rule("x [k, ...]", "y [k]"), "line 2: part 1 has the remaining dimensions ... only on one side"},
		{"a layout on one side", rule("x", "y [k]"), "line 2: part 1 of a has the axes [], of b [k]"},
		{"captures on one side", rule("x.{i}", "y"), "line 2: part 1 of a has the axes [i], of b []"},
		{"alternatives", rule("x.{i} | y.{j}", "z.{i}"), "line 2: the names of a tensor have different captures"},
		{"an optional tensor", rule("x?", "y"), "line 2: only a tensor that is tied can be optional (?)"},
		{"any text with a capture", rule("{rest*}.{i}", "{rest*}.{i}"), "line 2: {rest*} stands for any text, so each side needs one name"},
		{"any text on one side", rule("{rest*}", "{rest}"), "line 2: {rest*} stands for any text"},
		{"any text twice", rule("{rest*}.{rest*}", "{rest*}"), "line 2: {rest*} stands for any text"},
		{"tie with an optional first", sides + "[[rule]]\ntie = true\na = ['x?', 'y']\nb = 'z'", "line 2: tie: the first tensor of a side cannot be optional"},
		{"tie with layouts", sides + "[[rule]]\ntie = true\na = ['x [n, m]', 'y [m, n]']\nb = 'z [n, m]'", "line 2: tie: the tensors of a side have different layouts"},
		{"tie with captures", sides + "[[rule]]\ntie = true\na = ['x.{i}', 'y.{i}']\nb = 'z.{j}'", "line 2: tie: both sides need the same captures"},
		{"tie", sides + "[[rule]]\ntie = 1\na = 'x'\nb = 'z'", "line 3: tie: want true or false"},
		{"optional", sides + "[[rule]]\noptional = 'yes'\na = 'x'\nb = 'z'", "line 3: optional: want true or false"},
		{"when", sides + "[[rule]]\nwhen = 1\na = 'x'\nb = 'z'", "line 3: when: want a condition, as a text"},
		{"add", sides + "[[rule]]\nadd = 'one'\na = 'x'\nb = 'z'", "line 3: add: want a number"},
		{"cast", sides + "[[rule]]\ncast = 'float32'\na = 'x'\nb = 'z'", "line 3: cast: want a table such as"},
		{"cast to an unknown type", sides + "[[rule]]\ncast = {a = 'float33'}\na = 'x'\nb = 'z'", "line 3: cast: "},
		{"cast of an unknown side", sides + "[[rule]]\ncast = {c = 'float32'}\na = 'x'\nb = 'z'", `line 3: cast: unknown side "c"`},
		{"drop without a reason", sides + "[[drop]]\na = '*'", "line 2: a rule that drops names needs a reason"},
		{"drop with an empty reason", sides + "[[drop]]\na = '*'\nreason = ' '", "line 2: a rule that drops names needs a reason"},
		{"drop without names", sides + "[[drop]]\nreason = 'r'", "line 2: want the names to drop, of a or b"},
		{"drop an empty name", sides + "[[drop]]\na = ''\nreason = 'r'", "line 3: a: a pattern is empty"},
		{"drop elements without a reason", rule("x [n + drop(m)]", "y [n]"), "line 2: a rule that drops elements needs a reason"},
		{"drop elements of both sides", sides + "[[rule]]\nreason = 'r'\na = 'x [n + drop(m)]'\nb = 'y [n + drop(k)]'", "line 2: both sides have drop()"},
		{"a reason for nothing", sides + "[[rule]]\nreason = 'r'\na = 'x'\nb = 'y'", "line 2: the rule drops nothing"},
		{"fill without a reason", sides + "[[fill]]\na = 'x [2]'\ndtype = 'int8'", "line 2: a rule that fills a tensor needs a reason"},
		{"fill without a type", sides + "[[fill]]\na = 'x [2]'\nreason = 'r'", "line 2: want a dtype"},
		{"fill without a layout", sides + "[[fill]]\na = 'x'\nreason = 'r'\ndtype = 'int8'", "line 2: want a name with a layout"},
		{"fill both sides", sides + "[[fill]]\na = 'x [2]'\nb = 'x [2]'\nreason = 'r'\ndtype = 'int8'", "line 2: want one tensor, of one side"},
		{"fill a sum", sides + "[[fill]]\na = 'x [n + m]'\nreason = 'r'\ndtype = 'int8'", "line 2: want a name with a layout without sums"},
		{"variables as a value", sides + "variables = 1", "line 2: variables is not a table"},
		{"the name of a function", sides + "[variables]\nhas = 1", `line 3: "has" cannot be the name of a variable`},
		{"the name of the configuration", sides + "[variables]\nconfig = 1", `line 3: "config" cannot be the name of a variable`},
		{"a variable twice", sides + "[variables]\nx = 1\n[defaults]\nx = 2", "line 5: x is defined twice"},
		{"a variable that is a date", sides + "[variables]\nx = 1979-05-27", "line 3: x: "},
		{"a deep list", sides + "[variables]\nx = " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "line 3: x: the value is too large"},
		{"captures of a variable", sides + "[variables]\nx = 1\n[captures]\nx = 2", `line 5: "x" cannot be the name of a capture`},
		{"captures twice", sides + "[captures]\np = ['q', 'q']", "line 3: p: want a list of different texts"},
		{"captures of nothing", sides + "[captures]\np = []", "line 3: p: want a list of different texts"},
		{"captures of a truth", sides + "[captures]\np = true", "line 3: p: want the number of values"},
		{"captures of long texts", sides + "[captures]\np = ['" + strings.Repeat("q", 5000) + "']", "line 3: p: the texts have more than 4096 characters"},
		{"stack of another side", sides + "[stack]\nc = {i = true}", "line 3: stack: want a table for a or b"},
		{"stack without a condition", sides + "[stack]\na = {i = 1}", "line 3: i: want a condition"},
		{"many rules", sides + strings.Repeat("[[rule]]\na='x'\nb='y'\n", 4097), "more than 4096 rules"},
		{"many tables without keys", sides + strings.Repeat("[[rule]]\n", 1<<16), "line 2: want tensors of a"},
		{"many other tables", sides + strings.Repeat("[[x.y]]\n", 1<<16), `line 2: unknown key "x"`},
		{"a deep key", sides + "\nx" + strings.Repeat(".a", 1<<14) + " = 1", `line 3: unknown key "x"`},
		{"deep arrays", sides + "x = " + strings.Repeat("[", 1<<18), "line 2: "},
		{"many names", sides + "[[drop]]\nreason = 'r'\na = [" + strings.Repeat("'x',", 16385) + "]", "line 4: a: more than 16384 names in all rules"},
		{"a long text", sides + strings.Repeat("# comment\n", 1<<17), "it has more than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := recipe.Parse("file.toml", []byte(c.text))
			if !errors.Is(err, recipe.ErrSyntax) || !strings.Contains(err.Error(), "file.toml: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestExpressionErrors checks that conditions cannot use the parts of the language that
// could take much time or memory.
func TestExpressionErrors(t *testing.T) {
	for expression, want := range map[string]string{
		"":                                "it ends too early",
		"a +":                             "it ends too early",
		"a b":                             `"b" is in the wrong place`,
		"(a":                              "( without )",
		"[1, 2":                           "a list without ]",
		"'a":                              "a text does not end",
		"config":                          "config without a member",
		"config.1":                        `"1" cannot be a member`,
		"99999999999999999999":            "is not a number",
		"1..1000000000":                   `"." is in the wrong place`,
		"2 ** 1000":                       `"*" is in the wrong place`,
		"2 ^ 3":                           `"^" has no meaning`,
		`x matches "(a+)+"`:               `"matches" is in the wrong place`,
		"map(x, # + 1)":                   `"#" has no meaning`,
		"len(x)":                          "there is no function len",
		"let y = 1; y":                    `"=" has no meaning`,
		"x.y()":                           `"." is in the wrong place`,
		"system(1)":                       "there is no function system",
		"and":                             `"and" is in the wrong place`,
		strings.Repeat("x", 1001):         "an expression of more than 1000 characters",
		strings.Repeat("(", 400) + "x":    "more than 40 levels",
		strings.Repeat("[", 400) + "x":    "more than 40 levels",
		strings.Repeat("not ", 240) + "x": "more than 40 levels",
		strings.Repeat("-", 900) + "x":    "- without a number",
		"$env":                            `"$" has no meaning`,
	} {
		_, err := recipe.Parse("file.toml", fmt.Appendf(nil, sides+"[[rule]]\na = 'x'\nb = 'y'\nwhen = '''%s'''", expression))
		if !errors.Is(err, recipe.ErrSyntax) || !strings.Contains(err.Error(), "line 5: when: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", expression, err, want)
		}
	}
}

// TestParse checks what a recipe says of itself.
func TestParse(t *testing.T) {
	r, err := recipe.Parse("x", []byte("about = 'one'\nfamilies = 'f'\n"+rule("x", "y")+"[variables]\nn = 1\n[defaults]\nm = 'n + 1'"))
	if err != nil {
		t.Fatal(err)
	}
	if r.About != "one" || r.Families[0] != "f" || r.Sides != [2]string{"a", "b"} || len(r.SHA256) != 64 || fmt.Sprint(r.Variables()) != "[check_padding m n]" {
		t.Errorf("%+v", r)
	}
	if reverse, err := r.Reverse("b"); err != nil || !reverse {
		t.Error(reverse, err)
	}
	if _, err := r.Reverse("c"); !errors.Is(err, recipe.ErrVariable) || !strings.Contains(err.Error(), "the recipe x is for a and b, not c") {
		t.Error(err)
	}
}
