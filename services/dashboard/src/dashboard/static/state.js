// What the page knows: filled by the stream, read by map and panels.

export const PHASES = ["requested", "matched", "arrived", "riding"];
const ENDED_SHOWN_MS = 900;
const LATEST = 400; // so that a list that holds still finds its rides

export class State {
  constructor() {
    this.shapes = new Map(); // cell -> {id, name, borough, boundary}
    this.link = "connecting"; // of this page to the server
    this.reset();
  }

  reset() {
    this.cells = new Map(); // cell -> {multiplier, demand, supply, until}
    this.rides = new Map();
    this.cars = new Map(); // number -> [lat, lng] of free cars
    this.carsVersion = 0;
    this.finished = []; // short marks where rides ended
    this.latest = []; // ride ids, newest first
    this.ends = new Map(); // of the latest rides that ended: id -> {phase, ride}
    this.slow = null;
    this.full = null;
    this.cluster = null; // brokers, leaders and in-sync replicas
    this.hasFaults = false; // whether the server passes clicks on faults on
    this.broker = ["connecting", "", 0];
    this.clock = { at: 0, ms: 0, rate: 0 };
    this.completedAt = [];
    this.version = 0;
    this.cellsVersion = 0;
  }

  setShapes(shapes) {
    for (const shape of shapes) {
      const { boundary } = shape;
      const corners = boundary.length / 2;
      shape.centre = [0, 1].map((part) => boundary.reduce((sum, value, i) => (i % 2 === part ? sum + value : sum), 0) / corners);
      this.shapes.set(shape.id, shape);
    }
    this.#number();
    this.cellsVersion++;
  }

  // Cells of one zone have numbers, as nobody can tell their ids apart.
  #number() {
    const zones = new Map();
    for (const shape of this.shapes.values()) {
      const cells = zones.get(shape.name);
      if (cells) cells.push(shape);
      else zones.set(shape.name, [shape]);
    }
    for (const cells of zones.values()) {
      cells.sort((one, other) => (one.id < other.id ? -1 : 1));
      cells.forEach((shape, i) => { shape.number = cells.length > 1 ? [i + 1, cells.length] : null; });
    }
  }

  take(message, whole) {
    if (whole) {
      const { shapes } = this;
      this.reset();
      this.shapes = shapes;
    }
    const here = performance.now();
    // The server's clock leads; between its messages ours runs on at the measured speed.
    const expected = this.now();
    const ahead = expected - message.t;
    this.clock = { at: here, ms: ahead > 0 && ahead < 2000 * message.rate ? expected - ahead * 0.3 : message.t, rate: message.rate, last: message.t };
    this.broker = message.broker;
    if (message.shapes) this.setShapes(message.shapes);
    if (message.cells) {
      for (const [cell, multiplier, demand, supply, until] of message.cells) this.cells.set(cell, { multiplier, demand, supply, until });
      this.cellsVersion++;
    }
    if (message.cars) {
      for (const [number, lat, lng] of message.cars)
        if (lat === undefined) this.cars.delete(number);
        else this.cars.set(number, [lat, lng]);
      this.carsVersion++;
    }
    for (const ride of message.latest_ended ?? []) {
      this.#ride(ride);
      this.#end(ride[0], ride[1], here);
    }
    if (message.latest_ended) this.finished = []; // they ended before
    for (const ride of message.rides ?? []) this.#ride(ride);
    for (const [id, phase] of message.ended ?? []) this.#end(id, phase, here);
    if (message.topics) this.slow = message;
    if (message.full) this.full = message.full;
    if (message.cluster) this.cluster = message.cluster;
    if (message.faults !== undefined) this.hasFaults = message.faults;
    this.version++;
  }

  #ride([id, phase, lat0, lng0, lat1, lng1, t0, t1, toLat, toLng]) {
    const known = this.rides.get(id);
    const ride = { id, phase, lat0, lng0, lat1, lng1, t0, t1, toLat, toLng, from: known?.from ?? [lat0, lng0] };
    if (phase === "requested" || (!known && phase !== "matched")) ride.from = [lat0, lng0];
    else if (phase === "matched") ride.from = [lat1, lng1];
    this.rides.set(id, ride);
    if (!known) {
      this.latest.unshift(id);
      for (const old of this.latest.splice(LATEST)) this.ends.delete(old);
    }
  }

  #end(id, phase, here) {
    const ride = this.rides.get(id);
    if (!ride) return;
    this.rides.delete(id);
    const at = phase === "completed" ? [ride.toLat, ride.toLng] : this.place(ride, this.now());
    this.finished.push({ phase, at, until: here + ENDED_SHOWN_MS });
    if (this.finished.length > 400) this.finished.splice(0, 100);
    if (this.latest.includes(id)) this.ends.set(id, { phase, ride });
  }

  // Event time now, in ms: never far ahead of what was heard.
  now() {
    const { at, ms, rate, last } = this.clock;
    const run = Math.min(performance.now() - at, 1500) * rate;
    return last ? Math.min(ms + run, last + 1500 * rate) : ms;
  }

  place(ride, now) {
    const share = ride.t1 > ride.t0 ? Math.min(1, Math.max(0, (now - ride.t0) / (ride.t1 - ride.t0))) : 1;
    return [ride.lat0 + (ride.lat1 - ride.lat0) * share, ride.lng0 + (ride.lng1 - ride.lng0) * share, share];
  }

  multiplierOf(cell, now) {
    const found = this.cells.get(cell);
    return found && found.until > now ? found.multiplier : 1;
  }

  surging(now) {
    const found = [];
    for (const [cell, { multiplier, until }] of this.cells) if (multiplier > 1.001 && until > now) found.push([cell, multiplier]);
    return found.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  }
}
