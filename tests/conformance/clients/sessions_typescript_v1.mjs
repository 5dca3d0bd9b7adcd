// The TypeScript SDK's client, generation 1, with a session: node sessions_typescript_v1.mjs URL CUTTING_URL

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CreateMessageRequestSchema, ElicitationCompleteNotificationSchema, ElicitRequestSchema, ListRootsRequestSchema,
    LoggingMessageNotificationSchema, PromptListChangedNotificationSchema, ResourceListChangedNotificationSchema,
    ResourceUpdatedNotificationSchema, ToolListChangedNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';
import { text, version } from './walk.mjs';

/** Who answers, and hears what the server says unasked. */
class Ada {
    questions = [];
    logged = [];
    heard = [];

    /** What it has heard, once that is so much or four seconds are over. */
    async hears(count) {
        for (let i = 0; i < 80 && this.heard.length < count; i++) await new Promise(done => setTimeout(done, 50));
        return this.heard.splice(0).sort();
    }
}

/** What `what` gives with a session, the revision, and the session's id; the session has ended then. */
async function connected(url, what) {
    const ada = new Ada();
    const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } };
    const client = new Client({ name: 'typescript-v1', version: '1.0.0' }, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
        const mode = params.mode ?? 'form';
        ada.questions.push(`${mode}: ${params.message}`);
        return { action: 'accept', ...(mode === 'form' && { content: { name: 'Ada', people: 4, outside: true } }) };
    });
    client.setRequestHandler(CreateMessageRequestSchema, async ({ params }) => {
        ada.questions.push(`model: ${params.messages[0].content.text}`);
        return { role: 'assistant', content: { type: 'text', text: 'Soft and sweet.' }, model: 'test' };
    });
    client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [{ uri: 'file:///home/ada' }] }));
    client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void ada.logged.push(params.level));
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) =>
        void ada.heard.push(`resources/updated ${params.uri}`));
    client.setNotificationHandler(ElicitationCompleteNotificationSchema, () => void ada.questions.push('elicitation/complete'));
    for (const schema of [ToolListChangedNotificationSchema, PromptListChangedNotificationSchema, ResourceListChangedNotificationSchema])
        client.setNotificationHandler(schema, ({ method }) => void ada.heard.push(method.replace('notifications/', '')));
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    const { sessionId, protocolVersion } = transport;
    const result = await what(client, ada);
    await transport.terminateSession();
    await client.close();
    return [result, protocolVersion, sessionId];
}

/** The steps of ../legacy_lane.py, but for the cut and the end. */
async function walk(client, ada) {
    const call = (name, args = {}, onprogress) => client.callTool({ name, arguments: args }, undefined, { onprogress }).then(text);
    const steps = {};
    steps.tools = [(await client.listTools()).tools.map(tool => tool.name).sort(), await call('hello', { name: 'Ada' })];
    const menu = (await client.readResource({ uri: 'menu://today' })).contents[0].text;
    const prompt = await client.getPrompt({ name: 'recommend', arguments: { dish: 'risotto', guest: 'Ada' } });
    const completed = await client.complete({ ref: { type: 'ref/prompt', name: 'recommend' }, argument: { name: 'dish', value: 'ri' } });
    steps.read = [menu.split('\n'), prompt.messages[0].content.text, completed.completion.values];

    const reported = [];
    const cooked = await call('cook', { dish: 'risotto', steps: 3, step_ms: 10 }, update => reported.push(update.progress));
    steps.progress = [reported, cooked];

    const booked = await call('book_table', { day: 'Friday' });
    const paid = await call('pay_deposit', { amount: 20 });
    steps.elicitation = [booked, paid, ada.questions.splice(0)];
    steps.sampling = [await call('describe', { dish: 'tiramisu' }), ada.questions.splice(0)];
    steps.roots = await call('receipt_folder');

    await client.subscribeResource({ uri: 'menu://today' });
    const changed = await call('change_menu');
    const updated = await ada.hears(1);
    await client.unsubscribeResource({ uri: 'menu://today' });
    await call('change_menu');
    await call('change_staff');
    steps.subscriptions = [changed, updated, await ada.hears(3)];

    await client.setLoggingLevel('error');
    await call('inspect_kitchen');
    const quiet = ada.logged.splice(0);
    await client.setLoggingLevel('debug');
    await call('inspect_kitchen');
    steps['log level'] = [quiet, ada.logged.splice(0).length];

    const slow = await call('cook_slowly', { dish: 'gnocchi', seconds: 1.5 });
    steps.polling = [slow, ada.logged.splice(0)];
    return steps;
}

/** A call whose wire breaks after its second step. */
async function cook(client) {
    const reported = [];
    const onprogress = update => reported.push(update.progress);
    const args = { dish: 'risotto', steps: 7, step_ms: 300 };
    return [reported, text(await client.callTool({ name: 'cook', arguments: args }, undefined, { onprogress }))];
}

const [url, cuttingUrl] = process.argv.slice(2);
const [steps, revision, session] = await connected(url, walk);
[steps.resume] = await connected(cuttingUrl, cook);
console.log(JSON.stringify({ version: version('@modelcontextprotocol/sdk'), revision, session, steps }));
