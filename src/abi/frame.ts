// Frames of the agent and model sockets: what a client may ask (`session-abi.md` 3, 4), what is answered and stored (6.1), the rows of
// messages.jsonl (7.1).
import type { ErrnoName } from "./errno.js"
import { CtxError } from "./error.js"
import { Fields, isText, refuseField as refuse } from "./field.js"
import { isObject, type JsonObject, parseFrameObject } from "./json.js"
import { ARG_MAX, ARGS_MAX, FRAME_MAX, INPUT_DEPTH_MAX, INPUT_MAX, STEPS_MAX, TITLE_MAX } from "./limit.js"
import { isCleanPath, isName, isPendingId, isRunId, isSessionName, isUuid } from "./name.js"
import type { DoneStatus, Phase, SessionState } from "./status.js"

export type Scope = "private" | "shared" | "temp"

/** A content part of a row or frame (`session-abi.md` 6.1). */
export type TextPart = { type: "text"; text: string }
export type ImagePart = { type: "image"; path: string; media_type: string }
export type ToolResultPart = {
  type: "tool_result"
  tool_call_id: string
  content: string
  status: "ok" | "error"
  truncated?: true
  cached?: true
}
export type Part = TextPart | ImagePart | ToolResultPart

/** An internal child dispatch: who sent it. */
export interface ParentRun {
  agent: string
  session: string
  run: string
}

/** Which session a request means. `session` is `default` when it was omitted, but for `cancel`, where it then is `undefined`. */
interface Place {
  session: string
  scope: Scope
  shared?: string
}

export interface SendRequest extends Place {
  op: "send"
  id: string
  input: string
  cwd?: string
  workspace?: string
  window?: string
  suspendable: boolean
  wait: boolean
  steps?: number
  title?: string
  hash?: string
  uuid?: string
  parent?: ParentRun
}

export interface TshRequest {
  op: "tsh"
  id: string
  args: string[]
  session: string
  wait: boolean
  window?: string
}

export interface ResumeRequest extends Place {
  op: "resume"
  after?: number | string
  follow: boolean
}

export interface CancelRequest extends Omit<Place, "session"> {
  op: "cancel"
  id: string
  session?: string
}

export interface StatusRequest extends Place {
  op: "status"
}

export interface Answer {
  id: string
  value: string | string[]
}

export interface AnswerRequest extends Place {
  op: "answer"
  id: string
  pending: string
  answers?: Answer[]
  decision?: "allow_once" | "deny"
  wait: boolean
  window?: string
}

export interface ResetRequest extends Place {
  op: "reset"
}

export interface StopRequest {
  op: "stop"
  agent: string
}

export interface PingRequest {
  op: "ping"
}

/** The first frame of a connection. */
export type Request =
  | SendRequest
  | TshRequest
  | ResumeRequest
  | CancelRequest
  | StatusRequest
  | AnswerRequest
  | ResetRequest
  | StopRequest
  | PingRequest

/** Every op that may stand in a first frame. */
export const OPS = ["send", "tsh", "resume", "cancel", "status", "answer", "reset", "stop", "ping"] as const

function parseInput(f: Fields): string {
  const input = f.need<string>("input", v => typeof v === "string", "a string")
  if (Buffer.byteLength(input) > INPUT_MAX) throw new CtxError("EMSGSIZE", `input has more than ${INPUT_MAX} bytes`)
  if (input === "" || !isText(input)) refuse("input must be text of at least one byte without NUL")
  return input
}

function isArgs(v: unknown): boolean {
  return (
    Array.isArray(v) &&
    v.length >= 1 &&
    v.length <= ARGS_MAX &&
    v.every(arg => isText(arg) && Buffer.byteLength(arg) <= ARG_MAX)
  )
}

function isTitle(v: unknown): boolean {
  if (!isText(v) || /[\n\r]/.test(v)) return false
  const length = [...v].length
  return length >= 1 && length <= TITLE_MAX
}

function isAfter(v: unknown): boolean {
  return isName(v) || (Number.isSafeInteger(v) && (v as number) >= 0)
}

function isParent(v: unknown): boolean {
  return isObject(v) && isName(v.agent) && isSessionName(v.session) && isRunId(v.run)
}

function isAnswers(v: unknown): boolean {
  return (
    Array.isArray(v) &&
    v.length >= 1 &&
    v.every(a => isObject(a) && isName(a.id) && (isText(a.value) || (Array.isArray(a.value) && a.value.every(isText))))
  )
}

function parseSend(f: Fields): SendRequest {
  const parent = f.take<ParentRun>("parent", isParent, "an object with agent, session and run")
  const request: SendRequest = {
    op: "send",
    id: f.id(),
    input: parseInput(f),
    session: f.session() ?? "default",
    ...f.place(true),
    cwd: f.take("cwd", isCleanPath, "an absolute path without empty, . or .. components"),
    workspace: f.take("workspace", isCleanPath, "an absolute path without empty, . or .. components"),
    window: f.window(),
    suspendable: f.flag("suspendable"),
    wait: f.flag("wait"),
    steps: f.take("steps", v => Number.isInteger(v) && (v as number) >= 1 && (v as number) <= STEPS_MAX, "1 to 255"),
    title: f.take("title", isTitle, "one line of 1 to 200 characters"),
    hash: f.name("hash"),
    uuid: f.take("uuid", isUuid, "a lower-case UUID"),
    parent: parent && { agent: parent.agent, session: parent.session, run: parent.run },
  }
  if (request.suspendable && request.scope === "temp") refuse("suspendable does not go with scope temp")
  return request
}

function parseAnswer(f: Fields): AnswerRequest {
  const answers = f.take<Answer[]>("answers", isAnswers, "a list of objects with id and value")
  const decision = f.take<"allow_once" | "deny">(
    "decision",
    v => v === "allow_once" || v === "deny",
    "allow_once or deny",
  )
  if ((answers === undefined) === (decision === undefined)) refuse("give answers or decision, one of them")
  return {
    op: "answer",
    id: f.id(),
    pending: f.need("pending", isPendingId, "a run and a call joined by a dot"),
    answers: answers?.map(({ id, value }) => ({ id, value })),
    decision,
    session: f.session() ?? "default",
    ...f.place(),
    wait: f.flag("wait"),
    window: f.window(),
  }
}

function parseOp(op: unknown, f: Fields): Request {
  switch (op) {
    case "send":
      return parseSend(f)
    case "tsh":
      return {
        op,
        id: f.id(),
        args: f.need("args", isArgs, `1 to ${ARGS_MAX} strings of at most ${ARG_MAX} bytes without NUL`),
        session: f.session() ?? "default",
        wait: f.flag("wait"),
        window: f.window(),
      }
    case "resume":
      return {
        op,
        session: f.session() ?? "default",
        ...f.place(),
        after: f.take("after", isAfter, "a sequence number or an event id"),
        follow: f.flag("follow"),
      }
    case "cancel":
      return { op, id: f.need("id", isRunId, "a run id"), session: f.session(), ...f.place() }
    case "status":
    case "reset":
      return { op, session: f.session() ?? "default", ...f.place() }
    case "answer":
      return parseAnswer(f)
    case "stop":
      return { op, agent: f.need("agent", isName, "a name") }
    case "ping":
      return { op }
    case "approve":
      return refuse("approve is no first frame: send it on the connection that was asked")
    default:
      return refuse(op === undefined ? "op is missing" : "op is unknown")
  }
}

/** The bytes of one frame without its LF. Throws `EINVAL` when there are bytes behind the LF. */
function frameBody(line: Uint8Array): Uint8Array {
  const end = line.indexOf(0x0a)
  if (end === -1) return line
  if (end !== line.length - 1) refuse("bytes follow the end of the frame: one request for each connection")
  return line.subarray(0, end)
}

/**
 * The request of a first frame, with or without its LF, defaults filled in (`session-abi.md` 3, 4). Unknown fields are left out.
 * Throws `EMSGSIZE` for a frame above 1,048,576 bytes including LF and for an `input` above 262,144 bytes, `EINVAL` for everything
 * else that is not a request.
 */
export function parseRequest(line: Uint8Array): Request {
  if (line.length > FRAME_MAX) throw new CtxError("EMSGSIZE", `frame has more than ${FRAME_MAX} bytes`)
  const body = frameBody(line)
  if (body.length === 0) refuse("frame is empty")
  const o = parseFrameObject(body, INPUT_DEPTH_MAX)
  return parseOp(o.op, new Fields(o))
}

/** Fields that the recorder puts first into every stored frame; a temp frame has no `seq`. */
export interface Stored {
  seq: number
  ts: string
}

/** Token counts as they are stored and sent; `input_tokens` excludes `cached_tokens` and includes `cache_write_tokens`. */
export interface Tokens {
  input_tokens: number
  output_tokens: number
  cached_tokens?: number
  cache_write_tokens?: number
}

export interface Question {
  id: string
  text: string
  options?: string[]
  multiple?: boolean
  secret?: boolean
}

export interface StartFrame {
  type: "start"
  id: string
  run: string
  client_id: string
  op?: "tsh" | "answer"
  scope: Scope
  shared?: string
  cwd: string | null
  model?: string
  window?: string
  workspace?: string
  parent?: ParentRun
  resumes?: string
  pending?: string
}

export type DeltaFrame = { type: "delta"; run: string; text: string }
export type ReasoningDeltaFrame = { type: "reasoning_delta"; run: string; text: string }
export type ReasoningMessageFrame = { type: "reasoning_message"; run: string; content: TextPart[] }
export type MessageFrame = { type: "message"; run: string; role: "assistant" | "tool"; name?: string; content: Part[] }
export type ToolCallFrame = { type: "tool_call"; run: string; id: string; name: string; arguments: JsonObject }
export type UsageFrame = { type: "usage"; run: string; model?: string; step: number } & Tokens & {
    elapsed_ms?: number
    tool_calls?: string[]
    purpose?: string
  }
export type ErrorFrame = {
  type: "error"
  run?: string
  code: ErrnoName
  message: string
  tool?: string
  recoverable?: true
}
export type DoneFrame = { type: "done"; run: string; status: DoneStatus }
export type SessionCreatedFrame = {
  type: "session_created"
  session: string
  scope: Scope
  origin?: string
  uid: number
}
export type PongFrame = { type: "pong" }
export type StatusFrame = {
  type: "status"
  session: string
  status: SessionState
  phase: Phase
  run?: string
  step?: number
  tool?: string
  model?: string
  waiting: number
  updated_at: string
}
export type AcceptedFrame = {
  type: "accepted"
  op: "stop" | "reset" | "answer"
  agent?: string
  session?: string
  pending?: string
}

/** What an agent socket answers (`session-abi.md` 6.1), in the form before the recorder adds `seq` and `ts`. */
export type Frame =
  | StartFrame
  | DeltaFrame
  | ReasoningDeltaFrame
  | ReasoningMessageFrame
  | MessageFrame
  | ToolCallFrame
  | UsageFrame
  | ErrorFrame
  | DoneFrame
  | SessionCreatedFrame
  | PongFrame
  | StatusFrame
  | AcceptedFrame
