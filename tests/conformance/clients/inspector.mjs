// MCP Inspector's command lines: node inspector.mjs URL modern|legacy
//
// Its "--cli" makes one request a run and answers no questions. Its "mcpdo" keeps a connection in a daemon, and does.

import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { text, version } from './walk.mjs';

const [url, era] = process.argv.slice(2);
const bin = fileURLToPath(new URL('../node_modules/.bin/', import.meta.url));
const home = mkdtempSync(join(tmpdir(), 'mcpdo-'));
const env = {
    ...process.env,
    HOME: home,
    MCP_INSPECTOR_DAEMON_DIR: join(home, 'daemon'),
    MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(32).toString('hex'),
    MCP_INSPECTOR_SECRET_STORE: 'memory'
};

/** What a command prints; where it prints nothing, the error that it reports. */
function run(program, ...args) {
    const command = [join(bin, program), ...args, '--format', 'json'];
    const { stdout, stderr } = spawnSync(process.execPath, command, { env, encoding: 'utf8', timeout: 20_000 });
    return JSON.parse(stdout || stderr.trim().split('\n').at(-1));
}

const request = (method, ...args) => run('mcp-inspector', '--cli', url, '--protocol-era', era, '--method', method, ...args).result;
const call = (name, args) => request('tools/call', '--tool-name', name, '--tool-args-json', JSON.stringify(args));
const connected = (...args) => run('mcpdo', '--connection', url, ...args);

const revision = request('initialize').protocolVersion;
const steps = {};
const names = (list, key) => list.map(item => item[key]).sort();
steps.list = {
    tools: names(request('tools/list').tools, 'name'),
    resources: names(request('resources/list').resources, 'uri'),
    templates: names(request('resources/templates/list').resourceTemplates, 'uriTemplate'),
    prompts: names(request('prompts/list').prompts, 'name')
};

const hello = text(call('hello', { name: 'Ada' }));
let { notebook } = call('create_notebook', { title: 'Groceries' }).structuredContent;
for (const note of ['Milk', 'Bread']) call('add_note', { notebook, text: note });
steps.call = [hello, call('list_notes', { notebook }).structuredContent];

const read = uri => request('resources/read', '--uri', uri).contents[0].text;
steps.read = [read('info://server'), read('greeting://fr')];
steps.prompt = request('prompts/get', '--prompt-name', 'introduce', '--prompt-args', 'name=Ada', 'language=fr').messages[0].content.text;

const questions = [];
/** Call a tool and answer its questions. */
function ask(name, args) {
    let result = connected('tools/call', name, JSON.stringify(args));
    while (result.elicitationPending) {
        const { elicitationId, message, requestedSchema } = result.elicitationPending;
        questions.push(message);
        const content = 'confirm' in requestedSchema.properties ? { confirm: true } : { recipient: 'Ada' };
        result = connected('elicitation/respond', elicitationId, JSON.stringify(content));
    }
    return text(result);
}
try {
    run('mcpdo', 'connect', url, '--era', era);
    const transferred = ask('transfer_notebook', { notebook });
    if (!transferred.error) notebook = transferred.split(' ').at(-1);
    const notes = call('list_notes', { notebook }).structuredContent;
    steps.ask = { transferred, notes, deleted: ask('delete_notebook', { notebook }), questions };
    const subscribed = connected('resources/subscribe', 'info://server');
    steps.listen = subscribed.error ? { error: subscribed.error.message } : 'served';
} finally {
    run('mcpdo', 'daemon', 'stop');
    rmSync(home, { recursive: true });
}

console.log(JSON.stringify({ version: version('@modelcontextprotocol/inspector'), revision, steps }));
