// MCP Inspector's command lines: node inspector.mjs URL modern|legacy
//
// Its "--cli" makes one request a run, each with a connection of its own, and answers no questions. Its "mcpdo" keeps a
// connection in a daemon, and does.

import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
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
const connected = (...args) => run('mcpdo', '--connection', url, ...args);
const call = (name, args) => connected('tools/call', name, JSON.stringify(args));

const revision = request('initialize').protocolVersion;
const steps = {};
const names = (list, key) => list.map(item => item[key]).sort();
const questions = [];
/** Call a tool and answer its questions. */
function ask(name, args) {
    let result = call(name, args);
    while (result.elicitationPending) {
        const { elicitationId, message, requestedSchema } = result.elicitationPending;
        questions.push(message);
        const content = 'confirm' in requestedSchema.properties ? { confirm: true } : { recipient: 'Ada' };
        result = connected('elicitation/respond', elicitationId, JSON.stringify(content));
    }
    return text(result);
}
/** Write into a notebook until told of it: through a buffering gateway nothing else says that somebody listens. */
async function listen() {
    const { notebook } = call('create_notebook', { title: 'News' }).structuredContent;
    const uri = `notebook://${notebook}`;
    const command = [join(bin, 'mcpdo'), '--connection', url, 'resources/subscribe', uri, '--format', 'json'];
    let said = '';
    const told = () => said.includes('resources/updated') && said.split(uri).length > 2;
    // It does not listen again when a stream has ended.
    for (let streams = 0; streams < 5 && !told(); streams++) {
        const listener = spawn(process.execPath, command, { env });
        const ended = once(listener, 'exit');
        for (const output of [listener.stdout, listener.stderr]) output.on('data', data => (said += data));
        for (let notes = 0; notes < 6 && !told(); notes++) {
            call('add_note', { notebook, text: 'New' });
            await sleep(200);
        }
        listener.kill('SIGINT');
        await ended;
    }
    return told() ? 'told' : said;
}
try {
    run('mcpdo', 'connect', url, '--era', era);
    steps.list = {
        tools: names(request('tools/list').tools, 'name'),
        resources: names(connected('resources/list').resources, 'uri'),
        templates: names(connected('resources/templates/list').resourceTemplates, 'uriTemplate'),
        prompts: names(connected('prompts/list').prompts, 'name')
    };

    const hello = text(call('hello', { name: 'Ada' }));
    let { notebook } = call('create_notebook', { title: 'Groceries' }).structuredContent;
    for (const note of ['Milk', 'Bread']) call('add_note', { notebook, text: note });
    steps.call = [hello, call('list_notes', { notebook }).structuredContent];

    const read = uri => connected('resources/read', uri).contents[0].text;
    steps.read = [read('info://server'), read('greeting://fr')];
    steps.prompt = connected('prompts/get', 'introduce', '--prompt-args', 'name=Ada', 'language=fr').messages[0].content.text;

    const transferred = ask('transfer_notebook', { notebook });
    if (!transferred.error) notebook = transferred.split(' ').at(-1);
    const notes = call('list_notes', { notebook }).structuredContent;
    steps.ask = { transferred, notes, deleted: ask('delete_notebook', { notebook }), questions };
    if (era === 'modern') steps.listen = await listen();
    else steps.listen = { error: connected('resources/subscribe', 'info://server').error?.message };
} finally {
    run('mcpdo', 'daemon', 'stop');
    rmSync(home, { recursive: true });
}

console.log(JSON.stringify({ version: version('@modelcontextprotocol/inspector'), revision, steps }));
