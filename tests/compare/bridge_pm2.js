// Speaks to pm2 with its own client: {"start": APPLICATION} or {"delete": NAME} in, the time of
// asking out.
const pm2 = require(process.argv[2]);

pm2.connect(() => {
  // Not before: lines that come earlier would be read and thrown away.
  const lines = require("readline").createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const order = JSON.parse(line);
    const asked = process.hrtime.bigint();
    const answer = () => console.log(asked.toString());
    if (order.start) pm2.start(order.start, answer);
    else pm2.delete(order.delete, answer);
  });
  lines.on("close", () => process.exit(0));
});
