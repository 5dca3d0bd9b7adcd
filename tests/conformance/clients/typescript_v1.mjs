// The TypeScript SDK's client, generation 1: node typescript_v1.mjs URL legacy

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answer, version, walk } from './walk.mjs';

const [url] = process.argv.slice(2);
const questions = [];
const client = new Client({ name: 'typescript-v1', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
client.setRequestHandler(ElicitRequestSchema, async request => answer(questions, request.params));
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);

const call = (name, args, onprogress) => client.callTool({ name, arguments: args }, undefined, { onprogress });
const listen = () => client.subscribeResource({ uri: 'info://server' });
const steps = await walk(client, call, listen, questions);
console.log(JSON.stringify({ version: version('@modelcontextprotocol/sdk'), revision: transport.protocolVersion, steps }));
await client.close();
