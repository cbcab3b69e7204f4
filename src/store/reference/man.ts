/** Manual page `agent`. */
export const AGENT = `# agent

An agent is three files under /ctx/agent: NAME (a program), NAME.sock (its socket), NAME.d (its controls).

    coder      answers questions about the files in the workspace; the default agent
    reviewer   reads and reports faults
    worker     does one small task

Reading /ctx/agent/NAME gives facts as key=value, not code.

## Controls in NAME.d

    owner uid gid groups   whose agent it is and the identity it runs with
    label                  user:role:type:level; the type is its name in policies
    iso                    shared, uid or userns
    parent life            who made it; owned or temp
    root cwd               its root directory and where it starts
    env                    KEY=VALUE lines; CTX_AGENT_STEPS limits tool calls in a run
    path                   directories of tools, one a line
    mount                  source TAB target TAB ro or rw TAB options
    model                  an alias such as main, or provider/model
    abi                    sdk-envelope-v1
    policy                 allow SUBJECT CLASS:OBJECT PERMISSION, one a line; what is not allowed is denied
    status pid log         what the runtime says about itself
    meta.json              free facts
    tools                  tools the model may call directly
    approval window        auto or ask; auto or a number of tokens
    system.md              instructions
    hooks                  programs around steps; none as delivered

In this release controls are changed in the backing tree by their owner, not through /ctx. A malformed control makes the
next request fail and names the control. A malformed policy denies everything.

## Running

    ctx agent send NAME TEXT        answer on stdout, history in files
    ctx agent status NAME           what the runtime says
    ctx agent history NAME          the rows of the current session
    ctx agent output NAME           the latest answer
    ctx agent trajectory NAME       the session as an ATIF document
    ctx agent session list NAME     the sessions

Each program of an agent runs in a sandbox of its own, never as uid 0, without network. The project is at /workspace.
`

/** Manual page `tool`. */
export const TOOL = `# tool

A tool is two files under /ctx/tool: NAME (a program) and NAME.d (its controls). It has no socket.
Reading /ctx/tool/NAME gives facts as key=value, not code.

    fs.read   reads lines of a text file: path, line (1), lines (2000)
    fs.list   lists a directory: path (.), depth (1), hidden (false), limit (500)

## Controls in NAME.d

    name description   what it is
    schema             JSON Schema of its input
    cap                words: text, read, write, exec, net, agent, raw, mcp
    policy             who may run it; empty means nobody
    status             ready, or missing without a program
    log                facts about calls
    timeout            seconds; 120 when absent
    hooks              no behaviour

## Who may run it

A tool that lies here is installed, not allowed. A call is run only when the agent's control tools names it, it is found
in the agent's path, the agent's policy and the tool's policy both allow it, and its input fits the schema. It then runs
in a sandbox with the agent's identity.
`

/** Manual page `model`. */
export const MODEL = `# model

A model is text in, a stream of events out. It lies at /ctx/model/PROVIDER/MODEL with its facts in MODEL.d:
id driver cap effort default fallback limit session status log. All are read-only.

Built in, without network or key:

    debug/echo     answers with what it was told
    debug/script   plays a JSON script; for tests
    debug/guide    reads the files you name through fs.read and shows them; it knows nothing else

Six aliases are links: main helper fast reason code vision. In a new tree all lead to debug/guide. An agent's control
model names an alias or a model; a link of the same name in /ctx/home/UID/model comes first for that user's agents.

    ctx which model main
`

/** Manual page `coreutils`. */
export const COREUTILS = `# coreutils

ctx is the command line. It authorises nothing: it reads files and speaks to sockets.

    ctx status                      state of the mount
    ctx ls [PATH]                   names in a directory
    ctx cat PATH                    bytes of a file
    ctx which CLASS NAME            absolute path of a model, agent or tool
    ctx root                        the root of the tree
    ctx env                         settings for a shell: eval "$(ctx env)"
    ctx abi                         versions
    ctx validate NAME               whether NAME may name an object
    ctx agent send AGENT TEXT       ask; see ctx.agent.md for the rest
    ctx agent ps                    all agents and their state, children below parents
    ctx agent stop AGENT            end an agent and its children, as far as receipts prove them
    ctx bootstrap [--check]         make or check a reference tree
    ctx storage update [--prune]    select a valid generation of the stored tree
    ctx storage list                the generations and who holds them
    ctx storage verify              check the stored tree, without a change

Environment: CTX_ROOT (/ctx), CTX_HOME, CTX_PATH. With --json a command prints one JSON value.
A failure is one line on stderr: ctx: CODE: what: what to do.

    0 success      1 failure      2 wrong use or input      13 not permitted
    69 not available or busy      70 a fault of ctx         130 cancelled

    ctx COMMAND --help
`

/** Manual page `root-abi`. */
export const ROOT_ABI = `# root-abi

The root has seven entries and never more: status bin model agent tool home shared.

A name of an agent, tool, provider, model, session or space has 1 to 64 of A-Z a-z 0-9 . _ + - and begins with a letter or
digit; it does not end in .sock or .d.

An object is NAME (executable), NAME.sock (only where it has a conversation) and NAME.d (controls).

    value    one line
    list     one item a line
    pairs    KEY=VALUE lines without quoting
    stream   one JSON object a line

Each line ends in LF. A malformed control is refused, never repaired. A control is replaced whole: a temporary file,
then a rename.

home/UID is 0700 and its user's. It is made when that user first looks at it, and holds agent/ (private state and
sessions), model/ (own aliases) and tool/ (own tools). bin, model, tool and shared/cortexfs-docs are read-only; they come
from the stored generation, which is replaced only by ctx storage update.
`

/** Manual page `session`. */
export const SESSION = `# session

A session is a directory: /ctx/home/UID/agent/AGENT/session/NAME. Reading it needs no daemon.

    messages.jsonl   what was said, one row a line: user, tool, assistant
    events.jsonl     what happened, one event a line, numbered by seq
    latest.md        the latest answer
    state            active, idle, done or error
    cwd              directory of the last request
    created_at updated_at meta.json context/

session/index holds list, current and by-cwd, by-hash, by-uuid. Files are appended, never rewritten. A row is on the disk
before its sender is told. History that is damaged is refused with EIO, not mended.

    tail -f /ctx/home/$(id -u)/agent/coder/session/default/events.jsonl

The same request sent twice with one id is run once; the second gets the stored answer.
`

/** Manual page `provider`. */
export const PROVIDER = `# provider

The provider debug is built in: debug/echo, debug/script, debug/guide. It needs no configuration, key or network.

This release speaks to no other provider. A model's identity is always PROVIDER/MODEL, the maker and its model, never an
aggregator, a wire format or a URL.
`
