// JSON in lines, and the lines in which two texts differ.

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const MOST_PAIRS = 1_000_000; // of lines that are compared
const DEEPEST = 40; // that is still indented further

/** JSON text in lines, by its tokens: numbers and strings stay as they are written. What is no JSON stays as it is. */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const parts = [];
  let depth = 0;
  let before = "";
  for (const token of text.match(TOKENS)) {
    const isOpened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    if (closes) depth--;
    if (closes ? !isOpened : isOpened || before === ",") parts.push("\n", "  ".repeat(Math.min(depth, DEEPEST)));
    else if (before === ":") parts.push(" ");
    parts.push(token);
    if (token === "{" || token === "[") depth++;
    before = token;
  }
  return parts.join("");
}

/** The lines of both texts as [sign, line]: "−" only in the first, "+" only in the second, "" in both. */
export function diff(first, second) {
  const [one, other] = [first.split("\n"), second.split("\n")];
  const same = (line) => ["", line];
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start++;
  let end = 0;
  while (end < one.length - start && end < other.length - start && one.at(-1 - end) === other.at(-1 - end)) end++;
  return [
    ...one.slice(0, start).map(same),
    ...changes(one.slice(start, one.length - end), other.slice(start, other.length - end)),
    ...one.slice(one.length - end).map(same),
  ];
}

// The longest common subsequence of lines; when there are too many, none is taken for common.
function changes(one, other) {
  const width = other.length + 1;
  if (one.length * other.length > MOST_PAIRS) return [...one.map((line) => ["−", line]), ...other.map((line) => ["+", line])];
  const common = new Uint32Array((one.length + 1) * width); // how many lines are common from [i, j] on
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      common[i * width + j] = one[i] === other[j]
        ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) {
      found.push(["", one[i++]]);
      j++;
    } else if (j === other.length || (i < one.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) found.push(["−", one[i++]]);
    else found.push(["+", other[j++]]);
  }
  return found;
}
