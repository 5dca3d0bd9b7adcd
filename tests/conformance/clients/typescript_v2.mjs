// The TypeScript SDK's client, generation 2: node typescript_v2.mjs URL modern|legacy

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { setTimeout as sleep } from 'node:timers/promises';
import { answer, version, walk } from './walk.mjs';

const [url, era] = process.argv.slice(2);
const questions = [];
const client = new Client(
    { name: 'typescript-v2', version: '1.0.0' },
    { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: era === 'modern' ? 'auto' : 'legacy' } }
);
client.setRequestHandler('elicitation/create', async request => answer(questions, request.params));
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

const call = (name, args, onprogress) => client.callTool({ name, arguments: args }, { onprogress });
/** Write into a notebook until told of it: through a buffering gateway nothing else says that somebody listens. */
async function hear() {
    const { notebook } = (await call('create_notebook', { title: 'News' })).structuredContent;
    const uri = `notebook://${notebook}`;
    const change = new Promise(resolve =>
        client.setNotificationHandler('notifications/resources/updated', ({ params }) => resolve(params.uri))
    );
    let told;
    const write = async () => {
        while (!told) {
            await sleep(300);
            await call('add_note', { notebook, text: 'New' });
        }
    };
    const writing = write();
    const subscription = await client.listen({ resourceSubscriptions: [uri] });
    told = await change;
    await Promise.all([writing, subscription.close()]);
    return told === uri ? 'told' : told;
}
const listen = () => (era === 'modern' ? hear() : client.subscribeResource({ uri: 'info://server' }));
const steps = await walk(client, call, listen, questions);
const revision = client.getNegotiatedProtocolVersion();
console.log(JSON.stringify({ version: version('@modelcontextprotocol/client'), revision, steps }));
await client.close();
