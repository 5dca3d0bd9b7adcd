// The TypeScript SDK's client, generation 2: node typescript_v2.mjs URL modern|legacy

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
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
const listen = () =>
    era === 'modern' ? client.listen({ toolsListChanged: true }) : client.subscribeResource({ uri: 'info://server' });
const steps = await walk(client, call, listen, questions);
const revision = client.getNegotiatedProtocolVersion();
console.log(JSON.stringify({ version: version('@modelcontextprotocol/client'), revision, steps }));
await client.close();
