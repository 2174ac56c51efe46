// The city on a canvas: hexagons in a layer of their own, redrawn when a price changes; rides on top in every frame.

const STOPS = [[1.05, "--r1"], [1.2, "--r2"], [1.5, "--r3"], [2.0, "--r4"], [2.5, "--r5"], [3.0, "--r6"]];
const STRETCH = Math.cos((40.73 * Math.PI) / 180); // a degree of longitude is that much shorter than one of latitude
const HIT_PX = 14;
const MAX_ZOOM = 40;
const CENTRE = box(40.66, -74.06, 40.86, -73.84); // Manhattan and the near sides of Brooklyn and Queens
const TAIL = 0.16; // of a ride's way, drawn behind it
const TAIL_PX = 20; // at most

export class CityMap {
  constructor(canvas, ramp, state, { onHover, onPick }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.layer = document.createElement("canvas");
    this.layerContext = this.layer.getContext("2d");
    this.ramp = ramp;
    this.state = state;
    this.onHover = onHover;
    this.onPick = onPick;
    this.paths = new Map();
    this.view = null; // {x, y, scale}: what is in the middle, pixels per unit
    this.picked = null;
    this.pointers = new Map();
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.restyle();
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.#listen();
    const frame = () => {
      this.draw();
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colours = Object.fromEntries(["--water", "--land", "--land-line", "--ride", "--wait", "--good", "--warn", "--muted", "--text", "--panel", "--accent"].map((name) => [name.slice(2), read(name)]));
    this.stops = STOPS.map(([at, name]) => [at, rgb(read(name))]);
    this.#drawRamp();
    this.drawn = null;
  }

  colour(multiplier) {
    const { stops } = this;
    if (multiplier <= 1.001) return this.colours.land;
    let index = stops.findIndex(([at]) => multiplier <= at);
    if (index === -1) index = stops.length - 1;
    if (index === 0) return css(stops[0][1]);
    const [low, from] = stops[index - 1];
    const [high, to] = stops[index];
    const share = Math.min(1, (multiplier - low) / (high - low));
    return css(from.map((value, channel) => value + (to[channel] - value) * share));
  }

  #drawRamp() {
    const context = this.ramp.getContext("2d");
    const { width, height } = this.ramp;
    for (let x = 0; x < width; x++) {
      context.fillStyle = this.colour(1 + (2 * x) / (width - 1));
      context.fillRect(x, 0, 1, height);
    }
  }

  // World: x to the east and y to the south, in degrees of latitude.
  static world(lat, lng) {
    return [lng * STRETCH, -lat];
  }

  setShapes() {
    const { world } = CityMap;
    let [west, north, east, south] = [Infinity, Infinity, -Infinity, -Infinity];
    const boroughs = new Map();
    for (const [cell, { boundary, borough }] of this.state.shapes) {
      if (this.paths.has(cell)) continue;
      const corners = [];
      let [sumX, sumY] = [0, 0];
      for (let i = 0; i < boundary.length; i += 2) {
        const corner = world(boundary[i], boundary[i + 1]);
        corners.push(corner);
        sumX += corner[0];
        sumY += corner[1];
      }
      const centre = [sumX / corners.length, sumY / corners.length];
      this.paths.set(cell, { corners, centre });
      if (borough && borough !== "EWR") {
        west = Math.min(west, centre[0]); east = Math.max(east, centre[0]);
        north = Math.min(north, centre[1]); south = Math.max(south, centre[1]);
        const all = boroughs.get(borough) ?? [0, 0, 0];
        boroughs.set(borough, [all[0] + centre[0], all[1] + centre[1], all[2] + 1]);
      }
    }
    if (boroughs.size) {
      this.extent = { west, north, east, south };
      this.labels = [...boroughs].map(([name, [x, y, n]]) => ({ name, x: x / n, y: y / n, aside: 0 }));
      const manhattan = this.labels.find(({ name }) => name === "Manhattan");
      if (manhattan) {
        // Too narrow and too busy for its name: that goes beside it, on the water.
        const row = [...this.paths.values()].filter(({ centre }) => Math.abs(centre[1] - manhattan.y) < 0.006 && centre[0] > manhattan.x - 0.05);
        manhattan.x = Math.min(...row.map(({ centre }) => centre[0]));
        manhattan.aside = -54;
      }
    }
    this.drawn = null;
  }

  resize() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.layer]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    if (!this.moved) this.view = null;
    this.drawn = null;
  }

  showAll() {
    this.moved = true;
    this.view = null;
    this.#fit(this.extent);
    this.drawn = null;
  }

  // At first the map shows where the rides are, once there are some; before that, the middle of the city.
  #fit(extent) {
    if (!this.extent) return false;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const all = this.extent;
    this.least = Math.min(width / (all.east - all.west), height / (all.south - all.north)) * 0.8;
    const { west, north, east, south } = extent ?? this.#busy() ?? CENTRE;
    const scale = Math.min(width / ((east - west) * 1.08), height / ((south - north) * 1.1));
    this.view = { x: (west + east) / 2, y: (north + south) / 2, scale: Math.max(scale, this.least) };
    return true;
  }

  #busy() {
    const rides = [...this.state.rides.values()];
    if (rides.length < 30) return null;
    this.fitted = true;
    const places = rides.map((ride) => CityMap.world(ride.lat1, ride.lng1));
    const spread = (part) => {
      const sorted = places.map((place) => place[part]).sort((a, b) => a - b);
      const at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
      const [low, high] = [at(0.06), at(0.94)];
      const least = 0.1; // never closer than some eleven kilometres
      const grow = Math.max(0, least - (high - low)) / 2 + 0.012;
      return [low - grow, high + grow];
    };
    const [[west, east], [north, south]] = [spread(0), spread(1)];
    return { west, east, north, south };
  }

  toScreen([x, y]) {
    const { view, canvas } = this;
    return [(x - view.x) * view.scale + canvas.clientWidth / 2, (y - view.y) * view.scale + canvas.clientHeight / 2];
  }

  zoom(factor, [px, py] = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2]) {
    if (!this.view) return;
    const { view, canvas } = this;
    const scale = Math.min(Math.max(view.scale * factor, this.least), this.least * MAX_ZOOM);
    const [dx, dy] = [px - canvas.clientWidth / 2, py - canvas.clientHeight / 2];
    view.x += dx / view.scale - dx / scale;
    view.y += dy / view.scale - dy / scale;
    view.scale = scale;
    this.moved = true;
    this.drawn = null;
  }

  pan(dx, dy) {
    if (!this.view) return;
    this.view.x -= dx / this.view.scale;
    this.view.y -= dy / this.view.scale;
    this.moved = true;
    this.drawn = null;
  }

  #drawLayer(now) {
    const { layerContext: context, colours, view, ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.water;
    context.fillRect(0, 0, this.layer.width, this.layer.height);
    const half = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2];
    context.setTransform(ratio, 0, 0, ratio, half[0] * ratio, half[1] * ratio);
    context.lineWidth = 1;
    context.strokeStyle = colours["land-line"];
    const reach = [half[0] / view.scale + 0.02, half[1] / view.scale + 0.02];
    for (const [cell, { corners, centre }] of this.paths) {
      if (Math.abs(centre[0] - view.x) > reach[0] || Math.abs(centre[1] - view.y) > reach[1]) continue;
      context.beginPath();
      for (const [x, y] of corners) context.lineTo((x - view.x) * view.scale, (y - view.y) * view.scale);
      context.closePath();
      context.fillStyle = this.colour(this.state.multiplierOf(cell, now));
      context.fill();
      context.stroke();
    }
    this.#drawLabels(context);
    this.drawn = { version: this.state.cellsVersion, at: performance.now() };
  }

  #drawLabels(context) {
    const { view, colours } = this;
    context.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "center";
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = colours.water;
    context.fillStyle = colours.muted;
    for (const { name, x, y, aside } of this.labels ?? []) {
      const at = [(x - view.x) * view.scale + aside, (y - view.y) * view.scale];
      context.globalAlpha = 0.85;
      context.strokeText(name, ...at);
      context.fillText(name, ...at);
      context.globalAlpha = 1;
    }
  }

  draw() {
    if (!this.canvas.width) return;
    if (!this.fitted && !this.moved && this.state.rides.size >= 30) this.view = this.drawn = null;
    if (!this.view && !this.#fit()) return;
    const here = performance.now();
    if (this.still && this.drawn && here - this.lastFrame < 250) return;
    this.lastFrame = here;
    const now = this.state.now();
    // Prices also run out by themselves: look again every second.
    if (!this.drawn || this.drawn.version !== this.state.cellsVersion || here - this.drawn.at > 1000) this.#drawLayer(now);
    const { context, ratio, colours } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.layer, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const size = Math.min(5, Math.max(2.6, this.view.scale / 1100));
    this.places = [];
    for (const ride of this.state.rides.values()) this.#drawRide(context, ride, now, size);
    this.#drawEnds(context, here);
    const picked = this.picked && this.places.find(([id]) => id === this.picked);
    if (picked) {
      context.beginPath();
      context.arc(picked[1], picked[2], size + 5, 0, 7);
      context.strokeStyle = colours.accent;
      context.lineWidth = 2;
      context.stroke();
    }
  }

  #drawRide(context, ride, now, size) {
    const { colours } = this;
    const [lat, lng, share] = this.state.place(ride, now);
    const [x, y] = this.toScreen(CityMap.world(lat, lng));
    if (x < -20 || y < -20 || x > this.canvas.clientWidth + 20 || y > this.canvas.clientHeight + 20) return;
    this.places.push([ride.id, x, y]);
    context.beginPath();
    if (ride.phase === "riding") {
      const back = Math.max(0, share - TAIL);
      const tail = this.toScreen(CityMap.world(ride.lat0 + (ride.lat1 - ride.lat0) * back, ride.lng0 + (ride.lng1 - ride.lng0) * back));
      const length = Math.hypot(x - tail[0], y - tail[1]);
      const cut = length > TAIL_PX ? TAIL_PX / length : 1;
      context.moveTo(x + (tail[0] - x) * cut, y + (tail[1] - y) * cut);
      context.lineTo(x, y);
      context.strokeStyle = colours.ride;
      context.globalAlpha = 0.4;
      context.lineWidth = size * 0.7;
      context.lineCap = "round";
      context.stroke();
      context.globalAlpha = 1;
      context.beginPath();
      context.arc(x, y, size, 0, 7);
      context.fillStyle = colours.ride;
      context.fill();
      context.lineWidth = 1;
      context.strokeStyle = colours.water;
      context.stroke();
    } else {
      context.arc(x, y, ride.phase === "requested" ? size * 0.9 : size * 0.8, 0, 7);
      context.fillStyle = colours.water;
      context.fill();
      context.lineWidth = 1.6;
      context.strokeStyle = ride.phase === "requested" ? colours.wait : colours.ride;
      context.stroke();
    }
    if (ride.id === this.picked && ride.phase !== "requested") {
      const goal = this.toScreen(CityMap.world(ride.toLat, ride.toLng));
      context.setLineDash([3, 4]);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(...goal);
      context.strokeStyle = colours.accent;
      context.lineWidth = 1.5;
      context.stroke();
      context.setLineDash([]);
    }
  }

  #drawEnds(context, here) {
    const { state, colours } = this;
    state.finished = state.finished.filter((mark) => mark.until > here);
    if (this.still) return;
    for (const { phase, at, until } of state.finished) {
      const age = 1 - (until - here) / 900;
      const [x, y] = this.toScreen(CityMap.world(at[0], at[1]));
      context.beginPath();
      context.arc(x, y, 3 + 8 * age, 0, 7);
      context.globalAlpha = 1 - age;
      context.lineWidth = 2;
      context.strokeStyle = phase === "completed" ? colours.good : colours.warn;
      context.stroke();
      context.globalAlpha = 1;
    }
  }

  // What is under a point: a ride, else a cell.
  at(px, py) {
    let best = null;
    for (const [id, x, y] of this.places ?? []) {
      const away = Math.hypot(px - x, py - y);
      if (away < HIT_PX && (!best || away < best.away)) best = { ride: id, away };
    }
    if (best) return best;
    if (!this.view) return null;
    const { view, canvas } = this;
    const world = [(px - canvas.clientWidth / 2) / view.scale + view.x, (py - canvas.clientHeight / 2) / view.scale + view.y];
    for (const [cell, { corners, centre }] of this.paths) {
      if (Math.abs(centre[0] - world[0]) < 0.01 && Math.abs(centre[1] - world[1]) < 0.01 && inside(world, corners)) return { cell };
    }
    return null;
  }

  #listen() {
    const { canvas, pointers } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.0016), place(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      this.dragged = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) return this.onHover(this.at(...now), now);
      this.onHover(null, now);
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
        const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
        this.zoom(apart(now, other) / Math.max(apart(before, other), 1), middle);
        this.dragged = 99;
      } else {
        this.pan(now[0] - before[0], now[1] - before[1]);
        this.dragged += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      }
      pointers.set(event.pointerId, now);
    });
    const up = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && this.dragged < 6) this.onPick(this.at(...place(event)), place(event));
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.onHover(null));
    canvas.addEventListener("keydown", (event) => {
      const act = {
        ArrowLeft: () => this.pan(60, 0), ArrowRight: () => this.pan(-60, 0), ArrowUp: () => this.pan(0, 60), ArrowDown: () => this.pan(0, -60),
        "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4), 0: () => this.showAll(),
      }[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    });
  }
}

function box(south, west, north, east) {
  return { west: west * STRETCH, east: east * STRETCH, north: -north, south: -south };
}

function inside([x, y], corners) {
  let result = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [[xi, yi], [xj, yj]] = [corners[i], corners[j]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) result = !result;
  }
  return result;
}

function rgb(text) {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const css = (channels) => `rgb(${channels.map(Math.round).join(" ")})`;
