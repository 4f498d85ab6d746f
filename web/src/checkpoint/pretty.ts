const closing: Record<string, string> = { '(': ')', '[': ']', '{': '}' };

/** The end of the string literal that starts at i: the index after its closing quote. */
function stringEnd(text: string, i: number): number {
  const quote = text[i];
  for (let k = i + 1; k < text.length; k++) {
    if (text[k] === '\\') k++;
    else if (text[k] === quote) return k + 1;
  }
  return text.length;
}

/** For each opening bracket, the index of its closing bracket: the end of the text if it has none. */
function pairs(text: string): Map<number, number> {
  const ends = new Map<number, number>();
  const open: number[] = [];
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (c === "'" || c === '"') i = stringEnd(text, i) - 1;
    else if (c in closing) open.push(i);
    else if (open.length > 0 && c === closing[text[open[open.length - 1]]]) ends.set(open.pop()!, i);
  }
  for (const i of open) ends.set(i, text.length);
  return ends;
}

/** Whether the element that starts at i ends within room characters. */
function short(text: string, i: number, room: number, ends: Map<number, number>): boolean {
  for (let k = i; k - i <= room; k++) {
    const c = text[k];
    if (c === undefined || c === ',' || c === ']' || c === ')' || c === '}') return true;
    if (c in closing) k = ends.get(k)!;
    else if (c === "'" || c === '"') {
      for (k++; text[k] !== c && text[k] !== undefined && k - i <= room; k++) if (text[k] === '\\') k++;
    }
  }
  return false;
}

/**
 * Breaks the repr of a Python value into lines. If brackets do not fit on one line, each pair
 * of a dict has a line of its own, and lists and tuples fill lines. The text may end early.
 * Characters are never changed; only the white space after a comma may become a new line.
 */
export function pretty(text: string, width = 88): string {
  const ends = pairs(text);
  const out: string[] = [];
  const broken: number[] = []; // ends of the brackets that were broken into lines
  const fills: boolean[] = []; // whether elements of these brackets share lines
  let tall = false; // the element before takes several lines
  const deepest = 40; // levels that are broken into lines
  const line = () => '\n' + '  '.repeat(broken.length);
  let column = 0;
  const put = (s: string) => {
    out.push(s);
    const at = s.lastIndexOf('\n');
    column = at < 0 ? column + s.length : s.length - at - 1;
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    if (c === "'" || c === '"') {
      const end = stringEnd(text, i);
      put(text.slice(i, end));
      i = end;
    } else if (c in closing) {
      const end = ends.get(i)!;
      if (column + (end - i) + 1 <= width || end === i + 1 || broken.length === deepest) {
        put(text.slice(i, end + 1));
        i = end + 1;
      } else {
        broken.push(end);
        fills.push(c !== '{');
        put(c);
        put(line());
        i++;
      }
    } else if (i === broken[broken.length - 1]) {
      broken.pop();
      fills.pop();
      tall = true;
      put(line());
      put(c);
      i++;
    } else if (c === ',' && broken.length > 0) {
      put(',');
      i++;
      while (text[i] === ' ') i++;
      if (i !== broken[broken.length - 1]) {
        const same = fills[fills.length - 1] && !tall && short(text, i, width - column - 2, ends);
        put(same ? ' ' : line());
      }
      tall = false;
    } else {
      let end = i + 1;
      while (end < text.length && !`'"([{}]),`.includes(text[end])) end++;
      put(text.slice(i, end));
      i = end;
    }
  }
  return out.join('');
}
