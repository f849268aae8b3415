// Numbers and names as people read them: the same rules as wording.py.

const ABSENT = "–";
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

const isNumber = (value) => typeof value === "number";

function escapeCharacter(character) {
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
  if (short) return short;
  const code = character.codePointAt(0);
  const digits = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${digits[0]}${code.toString(16).padStart(digits[1], "0")}`;
}

function printable(text, limit = 200) {
  if (text.length > limit) {
    const kept = Math.max(limit - 1, 2);
    const tail = Math.floor(kept / 2);
    text = `${text.slice(0, kept - tail)}…${text.slice(text.length - tail)}`;
  }
  return text.replace(UNPRINTABLE, escapeCharacter);
}

function figure(value) {
  if (!isNumber(value)) return value || ABSENT;
  return value === 0 ? "0" : value.toExponential(2).replace("e+", "e");
}

function number(value) {
  if (!isNumber(value)) return value || ABSENT;
  const magnitude = Math.abs(value);
  if (value === 0) return "0";
  if (magnitude < 1e-2 || magnitude >= 1e7) return figure(value);
  return value.toLocaleString("en-US", magnitude < 1e4 ? { maximumSignificantDigits: 4 } : { maximumFractionDigits: 0 });
}

const count = (value) => (isNumber(value) ? value.toLocaleString("en-US") : value || ABSENT);

const fixed = (value, decimals, unit = "") => (isNumber(value) ? value.toFixed(decimals) + unit : value || ABSENT);

const signed = (value) => (isNumber(value) ? `${value < 0 ? "" : "+"}${value.toFixed(1)}` : value || ABSENT);

const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)} %` : ABSENT);

const formatLabel = (name) => (name === "none" ? ABSENT : name.toUpperCase());

const STATUS_MARKS = { "as expected": "✓", "over limit": "✕", abnormal: "▲", "not run": "–" };

const statusNode = (status) =>
  el("span", { class: `status ${status.replaceAll(" ", "-")}` }, `${STATUS_MARKS[status] || ""} ${status}`);
