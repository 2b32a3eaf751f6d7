// Tools that the models of this project are trained with. They run in this page; a search is answered by the
// person, as there is nothing here to search in.

const argument = (name) => ({ type: "object", properties: { [name]: { type: "string" } } });
const schema = (name, key) => ({ type: "function", function: { name, parameters: argument(key) } });

const FACTORS = {
  "h/min": 60, "min/s": 60, "day/h": 24, "week/day": 7, "ft/in": 12, "yd/ft": 3, "kg/g": 1000, "km/m": 1000, "m/cm": 100,
};
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

function calculate(text) {
  const parts = /^(-?\d{1,12})([+*-])(-?\d{1,12})$/.exec(String(text).replaceAll(" ", ""));
  if (!parts) return "error: a+b, a-b or a*b";
  const [a, b] = [BigInt(parts[1]), BigInt(parts[3])];
  return String(parts[2] === "+" ? a + b : parts[2] === "-" ? a - b : a * b);
}

function weekday(text) {
  const parts = /^(\d{4})-(\d\d)-(\d\d)$/.exec(String(text));
  const date = parts && new Date(`${text}T00:00:00Z`);
  const exists = date && !Number.isNaN(date.getTime()) && date.getUTCDate() === Number(parts[3]);
  return exists ? DAYS[date.getUTCDay()] : "error: year-month-day";
}

export const TOOLS = {
  calc: { text: "calculator", schema: schema("calc", "e"), run: ({ e }) => calculate(e) },
  day: { text: "weekday of a date", schema: schema("day", "d"), run: ({ d }) => weekday(d) },
  unit: { text: "factors of units", schema: schema("unit", "e"), run: ({ e }) => String(FACTORS[e] ?? "error: unknown units") },
  search: { text: "you give the result", schema: schema("search", "q"), run: null },
};

/** The result of a call, or null when a person has to give it. */
export function runTool(name, argumentsText) {
  const tool = TOOLS[name];
  if (!tool?.run) return null;
  try {
    return tool.run(JSON.parse(argumentsText));
  } catch {
    return "error: arguments";
  }
}

/** Ready prompts, one for each kind of task that the recipe `tiny` trains and a visitor can check: those first
 * that it solves as a rule. */
export const EXAMPLES = [
  { text: "Sort digits", prompt: "sort 8126" },
  { text: "Find the largest", prompt: "max 24,87,16,28" },
  { text: "Write a function", prompt: "f x plus 29 minus 21" },
  { text: "Use a calculator", prompt: "531-31=", tools: ["calc"] },
  { text: "Ask a calendar", prompt: "day of 2069-12-06", tools: ["day"] },
  { text: "Add two numbers", prompt: "12+30=" },
  { text: "Reverse letters", prompt: "reverse x r s b h a" },
  { text: "Follow the arrows", prompt: "4>8,7>6,3>0,6>4 from 7" },
  { text: "Name the best", prompt: "best n1,b8,m7,c4" },
  { text: "Count a digit", prompt: "count 3 in 333011" },
  { text: "Convert units", prompt: "5 week/day", tools: ["unit", "calc"] },
  { text: "Search, and you answer", prompt: "find e9", tools: ["search"] },
];
