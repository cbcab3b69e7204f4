// Every number of `session-abi.md` 15, `agent-runtime.md` 1, 4, 9, 12, 18 and `tool-policy-abi.md` 3, 7, 9, with its unit in its name or comment.

const KIB = 1024
const MIB = 1024 * KIB

/** Request frame, bytes including LF. */
export const FRAME_MAX = MIB
/** `input` of a send, bytes of UTF-8. */
export const INPUT_MAX = 256 * KIB
/** A stored row, bytes including LF. */
export const ROW_MAX = 8 * MIB
/** `args` of a `tsh` request and CLI form of a call: entries, and bytes of one. */
export const ARGS_MAX = 64
export const ARG_MAX = 64 * KIB
/** `title` of a send, characters. */
export const TITLE_MAX = 200
/** A request must be complete within this time. */
export const REQUEST_TIMEOUT_MS = 5_000
/** A peer that takes no byte for this time counts as disconnected. */
export const OUTPUT_STALL_MS = 30_000
/** Bytes of output buffered for one peer, or one row. */
export const OUTPUT_BUFFER_MAX = MIB
/** Connections of one runtime. */
export const CONNECTIONS_MAX = 256
/** Active runs of one runtime. */
export const RUNS_MAX = 16
/** Waiters of one session. */
export const WAITERS_MAX = 32
/** A locked session without a run of this runtime is retried for this time before `EBUSY`. */
export const RUN_LOCK_RETRY_MS = 1_000
/** Sessions looked through by recovery at runtime start. */
export const RECOVER_MAX = 64
/** Index `list`, bytes. */
export const INDEX_LIST_MAX = 16 * MIB
/** Other index files, bytes. */
export const INDEX_FILE_MAX = 256
/** A text control, bytes. */
export const CONTROL_MAX = 64 * KIB
/** `state` of a session, bytes (`session-abi.md` 13). */
export const STATE_MAX = 64

/** Step envelope, bytes including LF. */
export const ENVELOPE_MAX = MIB
/** Frame of an agent program or a native tool, bytes including LF. */
export const PROGRAM_FRAME_MAX = 256 * KIB
/** stdout of an agent program in one step, bytes. */
export const PROGRAM_OUTPUT_MAX = MIB
/** stderr kept of a program or tool, bytes. */
export const STDERR_MAX = 64 * KIB
/** Text of a program failure taken from stderr, characters. */
export const FAILURE_TEXT_MAX = 512
/** `history_messages` and `tool_context`, bytes each. */
export const HISTORY_MAX = 64 * KIB
export const TOOL_CONTEXT_MAX = 64 * KIB
/** Observation given to the next step, bytes; longer content keeps this much of head and tail. */
export const OBSERVATION_MAX = 16_384
export const OBSERVATION_HEAD = 12_000
export const OBSERVATION_TAIL = 4_000
/** Wall time of a step, a tool (unless its control says otherwise) and a model call. */
export const STEP_TIMEOUT_MS = 900_000
export const TOOL_TIMEOUT_S = 120
export const TOOL_TIMEOUT_MAX_S = 3_600
export const MODEL_TIMEOUT_MS = 600_000
/** Tool output kept in a result, bytes. */
export const TOOL_OUTPUT_MAX = MIB
/** Arguments of a call, bytes encoded. */
export const CALL_ARGUMENTS_MAX = 128 * KIB
/** Tool calls of a run: highest and default budget. */
export const STEPS_MAX = 255
export const STEPS_DEFAULT = 64
/** Seconds an approval, and a pending question, may wait: default, lowest, highest. */
export const APPROVAL_S = { standard: 300, min: 1, max: 3_600 } as const
export const PENDING_S = { standard: 86_400, min: 60, max: 604_800 } as const
/** Control socket frame, bytes including LF: usual, op `model`, ops `agent.*`. */
export const CONTROL_FRAME_MAX = 16 * KIB
export const MODEL_FRAME_MAX = MIB
export const AGENT_FRAME_MAX = 256 * KIB
/** Request ids of one run, and bytes of one. */
export const REQUEST_IDS_MAX = 1_024
export const REQUEST_ID_MAX = 128
/** Ancestors looked through for the sandbox root of a control peer. */
export const ANCESTORS_MAX = 64
/** One rules file, and the merged text, bytes. */
export const RULES_FILE_MAX = 64 * KIB
export const RULES_MAX = 64_000
/** Handoff and result of a child, bytes; artifacts referred to. */
export const HANDOFF_MAX = 64 * KIB
export const RESULT_MAX = 64 * KIB
export const REFS_MAX = 1_024
/** Children of a session, and their depth. */
export const CHILDREN_MAX = 64
export const CHILD_DEPTH_MAX = 8
/** Summary calls of one run. */
export const SUMMARY_CHUNKS_MAX = 8
/** Nodes of a plan. */
export const PLAN_NODES_MAX = 1_024
/** Time between SIGTERM and SIGKILL: of a run, of a terminal. */
export const KILL_GRACE_MS = 250
export const TERMINAL_GRACE_MS = 2_000
/** An idle runtime exits after this time. */
export const IDLE_EXIT_MS = 60_000
/** A stopped runtime exits within this time. */
export const STOP_MS = 5_000

/** Policy: rules of a file, bytes of a rule, characters of a subject, octets of a session or mount object. */
export const POLICY_RULES_MAX = 1_024
export const POLICY_RULE_MAX = 512
export const SUBJECT_MAX = 80
export const POLICY_OBJECT_MAX = 256
/** Lines of a mount file; lines of the control `tools`; pairs and bytes of the control `env`. */
export const MOUNT_LINES_MAX = 64
export const TOOLS_MAX = 64
export const ENV_PAIRS_MAX = 64
export const ENV_SIZE_MAX = 32 * KIB
/** Time the policy interpreter has to answer. */
export const INTERPRETER_TIMEOUT_MS = 100
/** `description` of a tool, bytes. */
export const DESCRIPTION_MAX = 1_024
/** A model's `limit` and an agent's `window`, tokens. */
export const LIMIT_MAX = 4_294_967_295
/** Messages and tools of one model request, bytes of an image. */
export const MESSAGES_MAX = 1_024
export const REQUEST_TOOLS_MAX = 128
export const IMAGE_MAX = 16 * MIB
/** Steps of a script of `debug/script`, and its longest sleep. */
export const SCRIPT_STEPS_MAX = 1_024
export const SCRIPT_SLEEP_MAX_MS = 60_000

/** Nesting of JSON that is read back from our own files. */
export const JSON_DEPTH_MAX = 1_024
/** Nesting of JSON that comes from outside; smaller, so that what was taken in can always be stored and read back. */
export const INPUT_DEPTH_MAX = 64

/** Bytes above which the log of models is moved away by a runtime that starts. model-abi 2 */
export const MODEL_LOG_MAX = 8 * MIB
