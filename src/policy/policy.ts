// Policy v0, the grammar of `agent/<name>.d/policy` and `tool/<name>.d/policy` (`tool-policy-abi.md` 7).
import { type Issue, issueError } from "../abi/issue.js"
import { CONTROL_MAX, POLICY_OBJECT_MAX, POLICY_RULES_MAX, SUBJECT_MAX } from "../abi/limit.js"
import { isModelReference, isName } from "../abi/name.js"

/** What a malformed rule fails in, in the order of the checks (`tool-policy-abi.md` 7.2). */
export type PolicyWord = "character" | "end" | "fields" | "verb" | "subject" | "class" | "object" | "permission"

const isPrintable = (s: string) => s.length >= 1 && s.length <= POLICY_OBJECT_MAX

const CLASSES = {
  tool: { isObject: isName as (s: string) => boolean, permissions: ["execute"] },
  model: { isObject: isModelReference as (s: string) => boolean, permissions: ["use"] },
  shared: { isObject: isName as (s: string) => boolean, permissions: ["read", "write"] },
  agent: { isObject: isName as (s: string) => boolean, permissions: ["create", "start", "stop", "read", "write"] },
  network: { isObject: (s: string) => s === "default", permissions: ["connect"] },
  session: { isObject: isPrintable, permissions: ["read", "write", "resume"] },
  mount: { isObject: isPrintable, permissions: ["read", "write"] },
} as const

/** A class of policy objects. */
export type PolicyClass = keyof typeof CLASSES

/** One `allow` line. */
export interface Rule {
  subject: string
  class: PolicyClass
  object: string
  permission: string
}

/** What a policy file says; repeated rules are there once, in the order of their first line. */
export interface Policy {
  rules: Rule[]
}

const SUBJECT = new RegExp(`^[A-Za-z0-9_]{1,${SUBJECT_MAX}}$`)

/** True when `s` may be the subject of a rule, which is the type field of an agent's label. */
export function isSubject(s: string): boolean {
  return SUBJECT.test(s)
}

function isClass(s: string): s is PolicyClass {
  return Object.hasOwn(CLASSES, s)
}

// `line` holds one character for each octet.
function parseRule(line: string, isEnded: boolean): Rule | { word: PolicyWord; why: string } {
  if (/[^\x20-\x7e]/.test(line)) return { word: "character", why: "only printable ASCII is allowed in a rule" }
  if (!isEnded) return { word: "end", why: "the last line must end in LF" }
  const fields = line.split(" ")
  const [verb, subject, target, permission] = fields
  if (fields.length !== 4 || fields.includes("")) {
    return { word: "fields", why: "write allow SUBJECT CLASS:OBJECT PERMISSION with single spaces" }
  }
  if (verb !== "allow") return { word: "verb", why: "a rule begins with allow" }
  if (!isSubject(subject!)) return { word: "subject", why: `1 to ${SUBJECT_MAX} of A-Z a-z 0-9 _` }
  const colon = target!.indexOf(":")
  const kind = colon === -1 ? target! : target!.slice(0, colon)
  if (!isClass(kind)) return { word: "class", why: `one of ${Object.keys(CLASSES).join(" ")}` }
  const object = target!.slice(kind.length + 1)
  if (!CLASSES[kind].isObject(object)) return { word: "object", why: `no object of class ${kind}` }
  if (!(CLASSES[kind].permissions as readonly string[]).includes(permission!)) {
    return { word: "permission", why: `class ${kind} has ${CLASSES[kind].permissions.join(" ")}` }
  }
  return { subject: subject!, class: kind, object, permission: permission! }
}

function bad(what: string, at: number | undefined, why: string): { policy: Policy; issue: Issue } {
  const issue: Issue = at === undefined ? { kind: "invalid", what, why } : { kind: "invalid", what, at, why }
  return { policy: { rules: [] }, issue }
}

/**
 * Reads a policy file without throwing. One malformed line makes the file invalid: then `issue` names it, its `why` beginning with the
 * {@link PolicyWord}, and `policy` is empty, which denies everything. Linear in the file's size.
 */
export function checkPolicy(bytes: Uint8Array, what = "policy"): { policy: Policy; issue?: Issue } {
  if (bytes.length > CONTROL_MAX) return bad(what, undefined, `has more than ${CONTROL_MAX} bytes`)
  const lines = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1").split("\n")
  const rules = new Map<string, Rule>()
  let count = 0
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]!
    const isEnded = i < lines.length - 1
    if (line === "") continue
    if (line.startsWith("#")) {
      if (line.includes("\0")) return bad(what, i + 1, "character: a comment holds no NUL")
      if (!isEnded) return bad(what, i + 1, "end: the last line must end in LF")
      continue
    }
    const rule = parseRule(line, isEnded)
    if ("word" in rule) return bad(what, i + 1, `${rule.word}: ${rule.why}`)
    if (++count > POLICY_RULES_MAX) return bad(what, i + 1, `has more than ${POLICY_RULES_MAX} rules`)
    if (!rules.has(line)) rules.set(line, rule)
  }
  return { policy: { rules: [...rules.values()] } }
}

/** The rules of a policy file. Throws `EINVAL` as {@link checkPolicy} reports it, e.g. `policy line 3: verb: a rule begins with allow`. */
export function parsePolicy(bytes: Uint8Array, what = "policy"): Policy {
  const { policy, issue } = checkPolicy(bytes, what)
  if (issue !== undefined) throw issueError(issue)
  return policy
}

/** A rule as its line, without LF. */
export function formatRule(r: Rule): string {
  return `allow ${r.subject} ${r.class}:${r.object} ${r.permission}`
}

/** The bytes of a policy file with these rules; {@link parsePolicy} reads the same rules from them. */
export function formatPolicy(policy: Policy): Buffer {
  return Buffer.from(policy.rules.map(r => `${formatRule(r)}\n`).join(""))
}
