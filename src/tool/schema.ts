import { CtxError } from "../abi/error.js"
import { isObject, type JsonObject } from "../abi/json.js"

const DEPTH_MAX = 32
const PATTERN_MAX = 256
/** Compiled schemas kept; each belongs to one text of a control. */
const KEPT_MAX = 64

type Check = (input: JsonObject) => string | undefined
const compiled = new Map<string, Check>()

/** Walks a schema and gives the first thing that is outside the dialect of tool-policy-abi 1. */
function findFlaw(v: unknown, depth: number): string | undefined {
  if (depth > DEPTH_MAX) return `is nested deeper than ${DEPTH_MAX}`
  if (Array.isArray(v)) {
    for (const item of v) {
      const flaw = findFlaw(item, depth + 1)
      if (flaw !== undefined) return flaw
    }
    return undefined
  }
  if (!isObject(v)) return undefined
  for (const [key, value] of Object.entries(v)) {
    if (key === "$dynamicRef" || key === "$dynamicAnchor") return `uses ${key}`
    if (key === "$ref" && typeof value === "string" && value !== "#" && !value.startsWith("#/"))
      return "has a $ref that is not local"
    if (key === "pattern" && typeof value === "string" && value.length > PATTERN_MAX)
      return "has a pattern that is too long"
    const flaw = findFlaw(value, depth + 1)
    if (flaw !== undefined) return flaw
  }
  return undefined
}

async function compile(schema: JsonObject): Promise<Check> {
  if (schema.type !== "object") throw new CtxError("EINVAL", "schema has not the type object")
  const flaw = findFlaw(schema, 0)
  if (flaw !== undefined) throw new CtxError("EINVAL", `schema ${flaw}`)
  // Only a call needs the validator; a runtime that only answers questions does not pay for it.
  const { Ajv2020 } = await import("ajv/dist/2020.js")
  const ajv = new Ajv2020({
    strict: false,
    validateFormats: false,
    logger: false,
    addUsedSchema: false,
    unicodeRegExp: true,
  })
  let validate: ReturnType<typeof ajv.compile>
  try {
    // A name of its own would be looked up, and clash with another schema of that name.
    const { $id, $schema, ...rest } = schema
    validate = ajv.compile(rest)
  } catch (cause) {
    throw new CtxError("EINVAL", "schema is not a JSON Schema of 2020-12", { cause })
  }
  return input => {
    if (validate(input)) return undefined
    const [first] = validate.errors ?? []
    return `input${first?.instancePath ?? ""} ${first?.message ?? "is not valid"}`
  }
}

async function getCheck(schema: JsonObject): Promise<Check> {
  const key = JSON.stringify(schema)
  const kept = compiled.get(key)
  if (kept !== undefined) return kept
  const check = await compile(schema)
  if (compiled.size >= KEPT_MAX) compiled.delete(compiled.keys().next().value!)
  compiled.set(key, check)
  return check
}

/** Every string of a value. */
function* stringsOf(v: unknown): Generator<string> {
  if (typeof v === "string") yield v
  else if (Array.isArray(v)) for (const item of v) yield* stringsOf(item)
  else if (isObject(v)) for (const [key, item] of Object.entries(v)) yield* stringsOf([key, item])
}

/** In the input of a reference tool the limits of strings hold in bytes too, and no string holds NUL (tool-policy-abi 5.1). */
function findStringFlaw(schema: JsonObject, input: JsonObject): string | undefined {
  for (const text of stringsOf(input)) if (text.includes("\0")) return "input holds NUL"
  const properties = isObject(schema.properties) ? schema.properties : {}
  for (const [key, value] of Object.entries(input)) {
    const property = Object.hasOwn(properties, key) ? properties[key] : undefined
    if (typeof value !== "string" || !isObject(property) || typeof property.maxLength !== "number") continue
    if (Buffer.byteLength(value) > property.maxLength) return `input/${key} has more than ${property.maxLength} bytes`
  }
  return undefined
}

/**
 * The input with the top-level defaults of the schema filled in, proved valid; nothing is coerced. `isReference` also
 * applies the rules for reference tools. Errors: EINVAL, for the input and for a schema outside the dialect.
 * tool-policy-abi 1, 5.1
 */
export async function validateInput(schema: JsonObject, input: JsonObject, isReference: boolean): Promise<JsonObject> {
  const check = await getCheck(schema)
  const filled: JsonObject = { ...input }
  for (const [key, property] of Object.entries(isObject(schema.properties) ? schema.properties : {})) {
    if (!Object.hasOwn(filled, key) && isObject(property) && Object.hasOwn(property, "default")) {
      filled[key] = structuredClone(property.default)
    }
  }
  const flaw = check(filled) ?? (isReference ? findStringFlaw(schema, filled) : undefined)
  if (flaw !== undefined) throw new CtxError("EINVAL", flaw)
  return filled
}
