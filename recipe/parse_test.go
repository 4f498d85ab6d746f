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

// manyKeys returns n lines with different keys.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%x=1\n", i)
	}
	return b.String()
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
		{"parts", rule("x [k + m]", "y [k]"), "line 2: the parts of the sides, which are tensors or terms of sums, do not correspond: a has 2, b has 1"},
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
		{"tie with captures of one tensor", sides + "[[rule]]\ntie = true\na = ['x', 'y.{i}']\nb = 'z.{i}'", "line 2: tie: the tensors of a side have different captures"},
		{"a fill with a fraction", sides + "[[fill]]\nb = 'z [1]'\nvalue = 0.5\ndtype = 'int64'\nreason = 'r'", "line 2: the value 0.5 would become 0 as int64"},
		{"a fill out of range", sides + "[[fill]]\nb = 'z [1]'\nvalue = 300\ndtype = 'uint8'\nreason = 'r'", "line 2: the value 300 would become 255 as uint8"},
		{"a fill of another truth", sides + "[[fill]]\nb = 'z [1]'\nvalue = 7\ndtype = 'bool'\nreason = 'r'", "line 2: the value 7 would become 1 as bool"},
		{"a fill that becomes infinite", sides + "[[fill]]\nb = 'z [1]'\nvalue = 1e6\ndtype = 'float16'\nreason = 'r'", "line 2: the value 1e+06 would become +Inf as float16"},
		{"a fill of zeros without a zero", sides + "[[fill]]\nb = 'z [1]'\nvalue = 0\ndtype = 'float8_e8m0fnu'\nreason = 'r'", "line 2: the value 0 would become 5.8"},
		{"a fill that is not a float64", sides + "[[fill]]\nb = 'z [1]'\nvalue = 9007199254740993\ndtype = 'int64'\nreason = 'r'", "line 4: value: 9007199254740993 is too large"},
		{"a fill of the largest int64", sides + "[[fill]]\nb = 'z [1]'\nvalue = 9223372036854775807\ndtype = 'int64'\nreason = 'r'", "line 4: value: 9223372036854775807 is too large"},
		{"an infinite sum", sides + "[[rule]]\na = 'x'\nb = 'z'\nadd = inf", "line 5: add: want a finite number"},
		{"tie", sides + "[[rule]]\ntie = 1\na = 'x'\nb = 'z'", "line 3: tie: want true or false"},
		{"optional", sides + "[[rule]]\noptional = 'yes'\na = 'x'\nb = 'z'", "line 3: optional: want true or false"},
		{"when", sides + "[[rule]]\nwhen = 1\na = 'x'\nb = 'z'", "line 3: when: want a condition, as a text"},
		{"add", sides + "[[rule]]\nadd = 'one'\na = 'x'\nb = 'z'", "line 3: add: want a number"},
		{"cast", sides + "[[rule]]\ncast = 'float32'\na = 'x'\nb = 'z'", "line 3: cast: want a table such as"},
		{"cast to an unknown type", sides + "[[rule]]\ncast = {a = 'float33'}\na = 'x'\nb = 'z'", "line 3: cast: "},
		{"cast of an unknown side", sides + "[[rule]]\ncast = {c = 'float32'}\na = 'x'\nb = 'z'", `line 3: cast: unknown side "c"`},
		{"quantize", sides + "[[rule]]\nquantize = 'float8_e4m3fn'\na = 'x'\nb = 'z'", "line 3: quantize: want a table for one side, such as { b = { dtype"},
		{"quantize no side", sides + "[[rule]]\nquantize = {}\na = 'x'\nb = 'z'", "line 3: quantize: want a table for one side"},
		{"quantize both sides", sides + "[[rule]]\nquantize = {a = {dtype = 'float8_e4m3fn'}, b = {dtype = 'float8_e4m3fn'}}\na = 'x'\nb = 'z'", "line 3: quantize: want a table for one side"},
		{"quantize an unknown side", sides + "[[rule]]\nquantize = {c = {dtype = 'float8_e4m3fn'}}\na = 'x'\nb = 'z'", `line 3: quantize: unknown side "c"`},
		{"quantize without a table", sides + "[[rule]]\nquantize = {b = 'float8_e4m3fn'}\na = 'x'\nb = 'z'", "line 3: quantize: b: want a table"},
		{"quantize without a dtype", sides + "[[rule]]\nquantize = {b = {}}\na = 'x'\nb = 'z'", "line 3: quantize: b: dtype: want float8_e4m3fn, "},
		{"quantize to large numbers", sides + "[[rule]]\nquantize = {b = {dtype = 'bfloat16'}}\na = 'x'\nb = 'z'", "line 3: quantize: b: dtype: want float8_e4m3fn, "},
		{"quantize to exponents", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e8m0fnu'}}\na = 'x'\nb = 'z'", "line 3: quantize: b: dtype: want float8_e4m3fn, "},
		{"quantize to an unknown type", sides + "[[rule]]\nquantize = {b = {dtype = 'fp8'}}\na = 'x'\nb = 'z'", "line 3: quantize: b: "},
		{"quantize by rows", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', block = 128}}\na = 'x'\nb = 'z'", "line 3: quantize: b: block: want two numbers, such as [128, 128]"},
		{"quantize by an empty block", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', block = [0, 1]}}\na = 'x'\nb = 'z'", "line 3: quantize: b: block: want two numbers, with at most 65536 elements"},
		{"quantize by large blocks", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', block = [4294967296, 4294967296]}}\na = 'x'\nb = 'z'", "line 3: quantize: b: block: want two numbers, with at most 65536 elements"},
		{"quantize with scales of the same name", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', scale = ''}}\na = 'x'\nb = 'z'", "line 3: quantize: b: scale: want what follows the name"},
		{"quantize with a hole", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', scale = 'x.{i}'}}\na = 'x'\nb = 'z'", "line 3: quantize: b: scale: want what follows the name"},
		{"quantize with another key", sides + "[[rule]]\nquantize = {b = {dtype = 'float8_e5m2', blocks = [1, 1]}}\na = 'x'\nb = 'z'", `line 3: quantize: b: unknown key "blocks"; known are dtype, block, scale`},
		{"quantize and tie", sides + "[[rule]]\ntie = true\nquantize = {b = {dtype = 'float8_e5m2'}}\na = 'x'\nb = 'z'", "line 2: quantize: the tensors of the rule cannot be tied"},
		{"quantize and add", sides + "[[rule]]\nadd = 1\nquantize = {b = {dtype = 'float8_e5m2'}}\na = 'x'\nb = 'z'", "line 2: quantize: the rule cannot add a constant"},
		{"quantize and cast", sides + "[[rule]]\ncast = {b = 'float32'}\nquantize = {b = {dtype = 'float8_e5m2'}}\na = 'x'\nb = 'z'", "line 2: quantize: b has its dtype already: cast can only have the dtype of a"},
		{"quantize in a fill", sides + "[[fill]]\nquantize = {b = {dtype = 'float8_e5m2'}}\nb = 'z [2]'", `line 3: unknown key "quantize" in [[fill]]`},
		{"drop without a reason", sides + "[[drop]]\na = '*'", "line 2: a rule that drops names needs a reason"},
		{"drop with an empty reason", sides + "[[drop]]\na = '*'\nreason = ' '", "line 2: a rule that drops names needs a reason"},
		{"drop without names", sides + "[[drop]]\nreason = 'r'", "line 2: want the names to drop, of a or b"},
		{"drop an empty name", sides + "[[drop]]\na = ''\nreason = 'r'", "line 3: a: a pattern is empty"},
		{"drop with captures and a star", sides + "[[drop]]\na = '*.{i}'\nreason = 'r'", `line 3: a: "*.{i}": write either captures or *`},
		{"drop any text", sides + "[[drop]]\na = '{rest*}'\nreason = 'r'", `line 3: a: "{rest*}": write either captures or *`},
		{"drop with a brace", sides + "[[drop]]\na = 'x}'\nreason = 'r'", `line 3: a: "x}": } without {`},
		{"copy_of in a rule", sides + "[[rule]]\na = 'x'\nb = 'y'\ncopy_of = 'z'", `line 5: unknown key "copy_of" in [[rule]]`},
		{"a side of the name copy_of", "sides = ['a', 'copy_of']", `line 1: sides: "copy_of" cannot be the name of a form`},
		{"copy_of without a reason", sides + "[[drop]]\na = 'x'\ncopy_of = 'y'", "line 2: a rule that drops names needs a reason"},
		{"copy_of without a name", sides + "[[drop]]\na = 'x'\ncopy_of = ''\nreason = 'r'", `line 4: copy_of: "": a name is empty`},
		{"copy_of a list", sides + "[[drop]]\na = 'x'\ncopy_of = ['y']\nreason = 'r'", "line 4: copy_of: want the name of a tensor"},
		{"copy_of a star", sides + "[[drop]]\na = 'x'\ncopy_of = 'y.*'\nreason = 'r'", `line 4: copy_of: "y.*": want a name without *`},
		{"copy_of a layout", sides + "[[drop]]\na = 'x'\ncopy_of = 'y [n]'\nreason = 'r'", `line 4: copy_of: "y [n]": want a name without * and without a layout`},
		{"copy_of of both sides", sides + "[[drop]]\na = 'x'\nb = 'x'\ncopy_of = 'y'\nreason = 'r'", "line 2: copy_of: want names of one side"},
		{"copy_of with another capture", sides + "[[drop]]\na = ['x.{i}.{j}', 'x.{j}']\ncopy_of = 'y.{i}'\nreason = 'r'", "line 2: copy_of: {i} is not in all names to drop"},
		{"copy_of with a capture and a star", sides + "[[drop]]\na = ['x.{i}', 'x.*']\ncopy_of = 'y.{i}'\nreason = 'r'", "line 2: copy_of: {i} is not in all names to drop"},
		{"copies of many names", sides + "[[drop]]\na = 'x'\ncopy_of = '" + strings.Repeat("x|", 16384) + "x'\nreason = 'r'", "line 4: copy_of: more than 16384 names in all rules"},
		{"drop elements without a reason", rule("x [n + drop(m)]", "y [n]"), "line 2: a rule that drops elements needs a reason"},
		{"drop elements of both sides", sides + "[[rule]]\nreason = 'r'\na = 'x [n + drop(m)]'\nb = 'y [n + drop(k)]'", "line 2: both sides have drop()"},
		{"a reason without a drop", sides + "[[rule]]\nreason = 'r'\na = 'x'\nb = 'y'", "line 2: the rule drops nothing"},
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
		{"a capture without values", sides + "[captures]\np = []", "line 3: p: want a list of different texts"},
		{"captures of a truth", sides + "[captures]\np = true", "line 3: p: want the number of values"},
		{"captures of long texts", sides + "[captures]\np = ['" + strings.Repeat("q", 5000) + "']", "line 3: p: the texts have more than 4096 characters"},
		{"stack of another side", sides + "[stack]\nc = {i = true}", "line 3: stack: want a table for a or b"},
		{"stack without a condition", sides + "[stack]\na = {i = 1}", "line 3: i: want a condition"},
		{"stack with another key", sides + "[stack]\na = {i = {when = true, dim = 1}}", `line 3: i: unknown key "dim"; known are when, axis`},
		{"stack with an axis and no condition", sides + "[stack]\na = {i = {axis = 1}}", "line 3: i: want a condition, or a table such as"},
		{"stack with a wrong axis", sides + "[stack]\na = {i = {when = true, axis = false}}", "line 3: i: axis: want a number or a formula"},
		{"an unknown name in an axis", rule("x.{i}.w", "y.{i}.w") + "[stack]\nb = { i = { when = true, axis = 'axs' } }", `line 6: stack: i: axis: "axs": axs is not defined`},
		{"multiply without a side", sides + "[[rule]]\nmultiply = 2\na = 'x'\nb = 'z'", "line 3: multiply: want a table for one side, such as { b = 0.5 }"},
		{"multiply both sides", sides + "[[rule]]\nmultiply = {a = 2, b = 2}\na = 'x'\nb = 'z'", "line 3: multiply: want a table for one side"},
		{"multiply an unknown side", sides + "[[rule]]\nmultiply = {c = 2}\na = 'x'\nb = 'z'", `line 3: multiply: unknown side "c"`},
		{"multiply and add", sides + "[[rule]]\nadd = 1\nmultiply = {b = 2}\na = 'x'\nb = 'z'", "line 2: multiply: the rule cannot add a constant too"},
		{"multiply and quantize", sides + "[[rule]]\nmultiply = {b = 2}\nquantize = {b = {dtype = 'float8_e5m2'}}\na = 'x'\nb = 'z'", "line 2: multiply: the rule cannot quantise too"},
		{"multiply in a fill", sides + "[[fill]]\nmultiply = {b = 2}\nb = 'z [2]'", `line 3: unknown key "multiply" in [[fill]]`},
		{"an unknown name in a variable", rule("x", "y") + "[variables]\ngroup = 'heads / kvheads'\nheads = 4", `line 6: group: "heads / kvheads": kvheads is not defined; known are check_padding, group, heads`},
		{"an unknown name in a default", rule("x", "y") + "[defaults]\n\nextra = 'padded ?? 3'", `line 7: extra: "padded ?? 3": padded is not defined`},
		{"a capture in a variable", rule("x.{i}", "y.{i}") + "[variables]\nn = 'i + 1'", `line 6: n: "i + 1": i is not defined`},
		{"an unknown name in the argument of a function", rule("x", "y") + "[variables]\nn = 'ceil_to(vocabulary, 128)'", "line 6: n: \"ceil_to(vocabulary, 128)\": vocabulary is not defined"},
		{"an unknown name in a list", rule("x", "y") + "[variables]\nn = '[1, [m]]'", "m is not defined"},
		{"an unknown name in a capture", rule("x.{i}", "y.{i}") + "[captures]\ni = 'layers'", `line 6: i: "layers": layers is not defined; known are check_padding`},
		{"a capture of another capture", rule("x.{i}.{j}", "y.{i}.{j}") + "[captures]\ni = 2\nj = 'i'", `line 7: j: "i": i is not defined`},
		{"a capture that no rule uses", rule("x.{i}", "y.{i}") + "[captures]\ni = 2\nk = 3", "line 7: captures: no rule uses {k}"},
		{"a list that no rule uses", rule("x.{i}", "y.{i}") + "[captures]\np = ['q', 'k']", "line 6: captures: no rule uses {p}"},
		{"a capture of any text", rule("{rest*}", "{rest*}") + "[captures]\nrest = 2", "line 6: captures: no rule uses {rest}"},
		{"a capture only in a condition", sides + "[captures]\ni = 2\n[[rule]]\na = 'x'\nb = 'y'\nwhen = 'i < 1'", "line 3: captures: no rule uses {i}"},
		{"an unknown name in a stack", rule("x.{i}.w", "y.{i}.w") + "[stack]\nb = { i = 'stackd' }", `line 6: stack: i: "stackd": stackd is not defined`},
		{"a stack of an unknown capture", rule("x.{i}.w", "y.{i}.w") + "[stack]\nb = { k = true }", "line 6: stack: no name of b has {k} between two dots"},
		{"a stack of the other side", rule("x.{i}.w [n]", "y [i, n]") + "[stack]\nb = { i = true }", "line 6: stack: no name of b has {i} between two dots"},
		{"a stack of a part of a step", rule("x.{i}.w", "y.w{i}.w") + "[stack.b]\ni = true", "line 6: stack: no name of b has {i} between two dots"},
		{"a stack of one of two names", rule("x.{i}.w", "y.{i}.w | z.{i}") + "[stack]\nb = { i = true }", "line 6: stack: no name of b has {i} between two dots"},
		{"an unknown name in a condition", sides + "[variables]\ntied = true\n[[rule]]\na = 'x'\nb = 'y'\nwhen = 'not tide'", `line 7: when: "not tide": tide is not defined; known are check_padding, optimizer_states, tied`},
		{"a capture of another rule in a condition", rule("x.{i}", "y.{i}") + "[[rule]]\nwhen = 'i < 2'\na = 'z'\nb = 'z'", `line 6: when: "i < 2": i is not defined`},
		{"an axis in a condition", sides + "[[rule]]\na = 'x [n]'\nb = 'y [n]'\nwhen = 'n > 3'", `line 5: when: "n > 3": n is not defined`},
		{"an unknown name in the condition of a fill", rule("x", "y") + "[[fill]]\nb = 'z [2]'\ndtype = 'int8'\nreason = 'r'\nwhen = 'bias'", `line 9: when: "bias": bias is not defined`},
		{"an unknown size of a fill", rule("x", "y") + "[[fill]]\nb = 'z [n]'\ndtype = 'int8'\nreason = 'r'", "line 6: b: the size of n is not known: define it in [variables]"},
		{"an unknown name in the condition of a drop", rule("x", "y") + "[[drop]]\nb = 'z'\nreason = 'r'\nwhen = 'old'", `line 8: when: "old": old is not defined`},
		{"a capture in the condition of a drop with a star", rule("x.{i}", "y.{i}") + "[[drop]]\nb = ['z.{i}', 'z.*']\nreason = 'r'\nwhen = 'i > 1'", `line 8: when: "i > 1": i is not defined`},
		{"an unknown name in a hole", rule("x.{layrs + j}", "y.{layrs + j}"), `line 3: a: "x.{layrs + j}": j in {layrs + j} is not defined: it is neither a variable, nor in [captures], nor alone in a hole`},
		{"an unknown name beside a capture", rule("x.{layrs + j}.{j}", "y.{layrs + j}") + "[captures]\nj = 2", `layrs in {layrs + j} is not defined`},
		{"an unknown name in copy_of", rule("x", "y") + "[[drop]]\nreason = 'r'\na = 'z.{p + q}'\ncopy_of = 'x.{p + q}'", `line 7: a: "z.{p + q}": p in {p + q} is not defined`},
		{"many rules", sides + strings.Repeat("[[rule]]\na='x'\nb='y'\n", 4097), "more than 4096 rules"},
		{"many tables without keys", sides + strings.Repeat("[[rule]]\n", 1<<16), "line 2: want tensors of a"},
		{"many other tables", sides + strings.Repeat("[[x.y]]\n", 1<<16), `line 2: unknown key "x"`},
		{"a deep key", sides + "\nx" + strings.Repeat(".a", 1<<14) + " = 1", `line 3: unknown key "x"`},
		{"deep arrays", sides + "x = " + strings.Repeat("[", 1<<18), "line 2: "},
		{"many names", sides + "[[drop]]\nreason = 'r'\na = [" + strings.Repeat("'x',", 16385) + "]", "line 4: a: more than 16384 names in all rules"},
		{"many captures", sides + "[captures]\n" + manyKeys(100000) + "[[rule]]\na = 'x'\nb = 'y'\n", "too many keys: it takes more than 134217728 steps to read the recipe"},
		{"many captures in a line", sides + "captures = {" + strings.ReplaceAll(manyKeys(100000), "\n", ",") + "k = 1}", "line 2: too many keys"},
		{"many rules in a line", sides + "rule = [" + strings.Repeat("{a = 'x', b = 'y'}, ", 4097) + "]", "line 2: more than 4096 rules"},
		{"many dotted keys", sides + strings.ReplaceAll(manyKeys(100000), "k", "k."), "too many keys"},
		{"many other names of tables", sides + strings.ReplaceAll(strings.ReplaceAll(manyKeys(100000), "k", "[k"), "=1", "]"), "too many keys"},
		{"many keys and many rules", sides + "[captures]\n" + manyKeys(10000) + strings.Repeat("[[rule]]\n", 90000), "too many keys"},
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

// TestNames checks that names are found wherever they can be defined.
func TestNames(t *testing.T) {
	for name, text := range map[string]string{
		"a capture that is learned":             rule("x.{i + 1}", "y.{i + 2}"),
		"a capture that is declared":            rule("x.{i + j}", "y.{j + i}") + "[captures]\ni = 2\nj = 2",
		"a capture of another rule":             rule("x.{i * n + j}", "y.{i}.{j}") + "[variables]\nn = 2",
		"a capture that is only an axis":        rule("x [e, n]", "y [n, e]") + "[captures]\ne = 3",
		"a capture that is only dropped":        rule("x", "y") + "[captures]\nk = 2\n[[drop]]\na = 'z.{k}'\nreason = 'r'",
		"a condition of an axis":                sides + "[[rule]]\na = 'x.{e} [n]'\nb = 'y [e, n]'\nwhen = 'e >= 0'",
		"a condition of the axis of another":    sides + "[captures]\ne = 2\n[[rule]]\na = 'x [e]'\nb = 'y [e]'\nwhen = 'e >= 0'",
		"a condition of any text":               sides + "[[rule]]\na = '{rest*}'\nb = '{rest*}'\nwhen = 'rest != \"x\"'",
		"a condition of a drop":                 rule("x.{i}", "y.{i}") + "[[drop]]\na = ['z.{i}', 'w.{i}.{i}']\nreason = 'r'\nwhen = 'i > check_padding'",
		"a variable that is defined later":      rule("x", "y") + "[defaults]\na = 'z'\n[variables]\nb = 'a'\nz = 1",
		"the size of a fill that is a capture":  rule("x.{e} [n]", "y [e, n]") + "[[fill]]\nb = 'z [e, 2]'\nreason = 'r'\ndtype = 'int8'",
		"a stack of all names of one tensor":    rule("x.{i}.w", "y.{i}.w | z.{i}.w") + "[[rule]]\na = 'v.{i}'\nb = 'v.{i}'\n[stack]\nb = { i = true }",
		"a stack of a name that is only filled": rule("x", "y") + "[captures]\ni = 2\n[[fill]]\nb = 'z.{i}.w [2]'\nreason = 'r'\ndtype = 'int8'\n[stack]\nb = { i = true }",
	} {
		if _, err := recipe.Parse("test", []byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestParse checks the description of a recipe.
func TestParse(t *testing.T) {
	r, err := recipe.Parse("x", []byte("about = 'one'\nfamilies = 'f'\n"+rule("x", "y")+"[variables]\nn = 1\n[defaults]\nm = 'n + 1'"))
	if err != nil {
		t.Fatal(err)
	}
	if r.About != "one" || r.Families[0] != "f" || r.Sides != [2]string{"a", "b"} || len(r.SHA256) != 64 || fmt.Sprint(r.Variables()) != "[check_padding m n optimizer_states]" {
		t.Errorf("%+v", r)
	}
	if reverse, err := r.Reverse("b"); err != nil || !reverse {
		t.Error(reverse, err)
	}
	if _, err := r.Reverse("c"); !errors.Is(err, recipe.ErrVariable) || !strings.Contains(err.Error(), "the recipe x is for a and b, not c") {
		t.Error(err)
	}
}
