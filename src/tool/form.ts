import { CtxError } from "../abi/error.js"
import { isObject, type JsonObject, parseJsonObject } from "../abi/json.js"
import { INPUT_DEPTH_MAX } from "../abi/limit.js"

/** The strings of an input in CLI form, `{"args":[…]}` and nothing else; undefined for any other input (tool-policy-abi 3.1). */
export function findArgs(input: JsonObject): string[] | undefined {
  const { args } = input
  if (Object.keys(input).length !== 1 || !Array.isArray(args)) return undefined
  return args.every(arg => typeof arg === "string") ? args : undefined
}

/** Whether a schema has a property of its own that is called `args`; then no input of the tool is in CLI form. */
export function hasArgsProperty(schema: JsonObject): boolean {
  return isObject(schema.properties) && Object.hasOwn(schema.properties, "args")
}

/** One argument that begins with `{` as JSON input; undefined for anything else. Errors: EINVAL for bad JSON. */
export function findJson(args: readonly string[]): JsonObject | undefined {
  const [only] = args
  if (args.length !== 1 || !only!.startsWith("{")) return undefined
  return parseJsonObject(only!, INPUT_DEPTH_MAX)
}

function readNumber(word: string, what: string): number {
  if (!/^[0-9]{1,15}$/.test(word)) throw new CtxError("EINVAL", `${what} is not a number: ${word}`)
  return Number(word)
}

/** Names of the positional arguments of the reference tools; the first `required` of them must be there. */
const FORMS: Readonly<Record<string, { required: number; names: string[] }>> = {
  "fs.read": { required: 1, names: ["path", "line", "lines"] },
  "fs.list": { required: 0, names: ["path", "depth"] },
}

/** Whether a tool of the system tier with this name is one of this release's own. */
export function isReferenceTool(name: string): boolean {
  return Object.hasOwn(FORMS, name)
}

/** The usage line of a reference tool. */
export function usageOf(tool: string): string {
  const { required, names } = FORMS[tool]!
  const words = names.map(name => name.toUpperCase())
  return (
    ["usage:", tool, ...words.slice(0, required), ...words.slice(required).map(word => `[${word}`)].join(" ") +
    "]".repeat(words.length - required)
  )
}

/**
 * The JSON input of a reference tool from its command-line form (tool-policy-abi 5.2). Bounds are left to the schema.
 * Errors: EINVAL for a wrong number or form of arguments.
 */
export function parseArgs(tool: string, args: readonly string[]): JsonObject {
  const json = findJson(args)
  if (json !== undefined) return json
  const form = Object.hasOwn(FORMS, tool) ? FORMS[tool] : undefined
  if (form === undefined) throw new CtxError("EINVAL", `${tool} has no command-line form`)
  if (args.length < form.required || args.length > form.names.length) throw new CtxError("EINVAL", usageOf(tool))
  return Object.fromEntries(args.map((word, i) => [form.names[i]!, i === 0 ? word : readNumber(word, form.names[i]!)]))
}
