// What this product calls itself.

/** Product version, SemVer; equal to package.json (a test compares them). */
export const VERSION = "0.1.0"

/** The ABI number of `status` (`spec/README.md` 6). */
export const ABI = 1

/** Version of the reference tree (`rolling-upgrades.md` 5). */
export const TREE_VERSION = 1

/** The step protocol of an agent program, exactly what the control `abi` says (`agent-runtime.md` 4). */
export const AGENT_ABI = "sdk-envelope-v1"

/** `schema` of a step envelope. */
export const INVOCATION_SCHEMA = "cortexfs.agent-invocation/v1"

/** The single argument an agent program is started with. */
export const STEP_ARGUMENT = "--cortexfs-sdk-envelope-v1"

/** `schema` of a `debug/script` script (`model-abi.md` 10.2). */
export const SCRIPT_SCHEMA = "cortexfs.script/v1"

/** `schema_version` of an exported trajectory (`session-abi.md` 14). */
export const TRAJECTORY_VERSION = "ATIF-v1.7"
