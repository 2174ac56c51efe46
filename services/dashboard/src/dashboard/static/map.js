// The city on a canvas: hexagons in a layer of their own, redrawn when a price changes; rides on top, redrawn when one
// has moved far enough to be seen.

// Real prices are between 1.1 and 1.5 nearly always: steps tell them apart, a ramp up to 3 would not.
export const STEPS = [[1.1, "--r1"], [1.2, "--r2"], [1.3, "--r3"], [1.5, "--r4"], [2, "--r5"], [3, "--r6"]];
const STRETCH = Math.cos((40.73 * Math.PI) / 180); // a degree of longitude is that much shorter than one of latitude
const HIT_PX = { mouse: 7, pen: 7, touch: 14 }; // a ride's reach; what is further away is its cell
const PRICE_PX = 46; // width of a cell from which on its price is written into it
const CELL_WIDTH = 0.0093; // of a hexagon, in degrees of latitude
const MAX_ZOOM = 40;
const CENTRE = box(40.66, -74.06, 40.86, -73.84); // Manhattan and the near sides of Brooklyn and Queens
const TAIL = 0.16; // of a ride's way, drawn behind it
const TAIL_PX = 20; // at most
const HALO_PX = 1.6; // around a ride, so that it can be seen on every colour
const MANY_RIDES = 1000; // above this 30 frames a second are drawn
const FRAME_MS = 32;
const STILL_FRAME_MS = 250; // for those who asked for less motion
const STEP_PX = 0.25; // so far the fastest ride moves before the next frame
const CAR_PX = 2.4;
const COAST_UNITS = 10_000; // of city.svg in a degree
const OFFSHORE = 0.35; // how strong a cell's colour is on the water
const TURN = 2 * Math.PI;

export class CityMap {
  constructor(canvas, state, { onHover, onPick }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.layer = document.createElement("canvas");
    this.layerContext = this.layer.getContext("2d");
    this.cars = document.createElement("canvas"); // free cars: they move once a second
    this.carsContext = this.cars.getContext("2d");
    this.state = state;
    this.onHover = onHover;
    this.onPick = onPick;
    this.paths = new Map();
    this.view = null; // {x, y, scale}: what is in the middle, pixels per unit
    this.picked = null;
    this.selected = null; // by keys: {cell} or {ride}
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
    this.font = read("--font");
    this.colours = Object.fromEntries(["--water", "--land", "--land-line", "--ride", "--wait", "--good", "--warn", "--muted", "--text", "--panel", "--accent", "--halo"].map((name) => [name.slice(2), read(name)]));
    this.steps = STEPS.map(([least, name]) => {
      const channels = rgb(read(name));
      return { least, colour: css(channels), ink: ink(channels) };
    });
    this.drawn = null;
  }

  // The highest step that a multiplier reaches; null for what is no surge. Multipliers are tenths.
  stepOf(multiplier) {
    let found = null;
    for (const step of this.steps) if (multiplier > step.least - 0.05) found = step;
    return found;
  }

  colour(multiplier) {
    return this.stepOf(multiplier)?.colour ?? this.colours.land;
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

  // In: the file city.svg, whose unit is 1/10,000 of a degree.
  setCoast(text) {
    const found = new DOMParser().parseFromString(text, "image/svg+xml");
    const path = (id) => new Path2D(found.getElementById(id).getAttribute("d"));
    this.coast = { land: path("coast"), bridges: path("bridges") };
    this.drawn = null;
  }

  resize() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.layer, this.cars]) {
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
    // One path for each colour: filled at once.
    const land = new Path2D();
    const surging = new Map();
    const prices = [];
    for (const [cell, { corners, centre }] of this.paths) {
      if (Math.abs(centre[0] - view.x) > reach[0] || Math.abs(centre[1] - view.y) > reach[1]) continue;
      const multiplier = this.state.multiplierOf(cell, now);
      const step = this.stepOf(multiplier);
      let path = land;
      if (step) {
        path = surging.get(step);
        if (!path) surging.set(step, (path = new Path2D()));
        prices.push([multiplier, step, centre]);
      }
      corners.forEach(([x, y], i) => path[i ? "lineTo" : "moveTo"]((x - view.x) * view.scale, (y - view.y) * view.scale));
      path.closePath();
    }
    context.save();
    if (this.coast) {
      // A cell that reaches into the water is faint there, and cut off by the coast.
      context.globalAlpha = OFFSHORE;
      this.#fillCells(context, surging);
      context.globalAlpha = 1;
      this.#drawCoast(context);
    } else {
      context.fillStyle = colours.land;
      context.fill(land);
    }
    context.stroke(land);
    this.#fillCells(context, surging);
    context.restore();
    this.pricesWritten = CELL_WIDTH * view.scale >= PRICE_PX ? prices.length : 0;
    if (this.pricesWritten) this.#drawPrices(context, prices);
    this.#drawLabels(context);
    this.drawn = { version: this.state.cellsVersion, at: performance.now() };
  }

  #fillCells(context, surging) {
    for (const [{ colour }, path] of surging) {
      context.fillStyle = colour;
      context.fill(path);
      context.stroke(path);
    }
  }

  // Fills the land, and keeps what is drawn afterwards on it.
  #drawCoast(context) {
    const { coast, colours, view } = this;
    const toScreen = new DOMMatrix([(STRETCH * view.scale) / COAST_UNITS, 0, 0, view.scale / COAST_UNITS, -view.x * view.scale, -view.y * view.scale]);
    const [land, bridges] = [new Path2D(), new Path2D()];
    land.addPath(coast.land, toScreen);
    bridges.addPath(coast.bridges, toScreen);
    context.save();
    context.strokeStyle = colours.land;
    context.lineWidth = Math.min(5, Math.max(1.5, view.scale / 2500));
    context.stroke(bridges);
    context.restore();
    context.fillStyle = colours.land;
    context.fill(land, "evenodd");
    context.clip(land, "evenodd");
  }

  #drawPrices(context, prices) {
    const { view } = this;
    context.font = `650 12px ${this.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const [multiplier, step, [x, y]] of prices) {
      context.fillStyle = step.ink;
      context.fillText(`${multiplier.toFixed(1)}×`, (x - view.x) * view.scale, (y - view.y) * view.scale);
    }
    context.textBaseline = "alphabetic";
  }

  #drawLabels(context) {
    const { view, colours } = this;
    context.font = `600 12px ${this.font}`;
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
    const now = this.state.now();
    if (!this.#isDue(here, now)) return;
    // Prices also run out by themselves: look again every second.
    const isMoved = !this.drawn;
    if (isMoved || this.drawn.version !== this.state.cellsVersion || here - this.drawn.at > 1000) this.#drawLayer(now);
    if (isMoved || this.carsDrawn !== this.state.carsVersion) this.#drawCars();
    const { context, ratio, colours } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.layer, 0, 0);
    if (this.state.cars.size) context.drawImage(this.cars, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const pace = this.#drawRides(context, now);
    this.#drawEnds(context, here);
    this.#drawSelected(context);
    this.frame = { at: here, now, pace, version: this.state.version, picked: this.picked, selected: this.selected };
  }

  // Whether another frame would look different from the last one.
  #isDue(here, now) {
    const { drawn, frame, state } = this;
    if (!drawn || !frame) return true;
    const rest = this.still ? STILL_FRAME_MS : state.rides.size > MANY_RIDES ? FRAME_MS : 0;
    if (here - frame.at < rest) return false;
    return frame.version !== state.version || frame.picked !== this.picked || frame.selected !== this.selected
      || state.finished.length > 0 || here - drawn.at > 1000 || frame.pace * Math.abs(now - frame.now) >= STEP_PX;
  }

  #drawCars() {
    const { carsContext: context, view, ratio } = this;
    this.carsDrawn = this.state.carsVersion;
    const { width, height } = this.cars;
    context.clearRect(0, 0, width, height);
    context.fillStyle = this.colours.muted;
    context.globalAlpha = 0.65;
    const size = CAR_PX * ratio;
    const [across, down] = [STRETCH * view.scale * ratio, -view.scale * ratio];
    const [left, top] = [width / 2 - view.x * view.scale * ratio - size / 2, height / 2 - view.y * view.scale * ratio - size / 2];
    for (const [lat, lng] of this.state.cars.values()) {
      const x = left + lng * across;
      const y = top + lat * down;
      if (x > -size && y > -size && x < width && y < height) context.fillRect(x, y, size, size);
    }
  }

  // All rides of a phase are one path with one halo, whatever their number. Returns the pace of the fastest in pixels per
  // ms of event time.
  #drawRides(context, now) {
    const { colours, state, view } = this;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const size = Math.min(5, Math.max(2.8, view.scale / 1100));
    const [left, top] = [width / 2 - view.x * view.scale, height / 2 - view.y * view.scale];
    const [across, down] = [STRETCH * view.scale, -view.scale];
    const [waiting, coming, riding, tails, halos] = [new Path2D(), new Path2D(), new Path2D(), new Path2D(), new Path2D()];
    const ids = [];
    const xs = [];
    const ys = [];
    let picked = null;
    let pace = 0;
    for (const ride of state.rides.values()) {
      const { t0, t1, lat0, lat1, lng0, lng1, phase } = ride;
      const share = t1 > t0 ? Math.min(1, Math.max(0, (now - t0) / (t1 - t0))) : 1;
      const x = left + (lng0 + (lng1 - lng0) * share) * across;
      const y = top + (lat0 + (lat1 - lat0) * share) * down;
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
      if (now < t1) pace = Math.max(pace, Math.hypot((lng1 - lng0) * across, (lat1 - lat0) * down) / (t1 - t0));
      ids.push(ride.id);
      xs.push(x);
      ys.push(y);
      if (ride.id === this.picked) picked = { ride, x, y };
      const isRiding = phase === "riding";
      const radius = isRiding ? size : size * 0.9;
      halos.moveTo(x + radius + HALO_PX, y);
      halos.arc(x, y, radius + HALO_PX, 0, TURN);
      const path = isRiding ? riding : phase === "requested" ? waiting : coming;
      path.moveTo(x + radius, y);
      path.arc(x, y, radius, 0, TURN);
      if (isRiding && share > 0) {
        const back = Math.min(share, TAIL);
        const dx = (lng0 - lng1) * back * across;
        const dy = (lat0 - lat1) * back * down;
        const length = Math.hypot(dx, dy);
        const cut = length > TAIL_PX ? TAIL_PX / length : 1;
        tails.moveTo(x + dx * cut, y + dy * cut);
        tails.lineTo(x, y);
      }
    }
    this.shown = { ids, xs, ys };
    context.strokeStyle = colours.ride;
    context.globalAlpha = 0.5;
    context.lineWidth = size * 0.7;
    context.stroke(tails);
    context.globalAlpha = 1;
    context.fillStyle = colours.halo;
    context.fill(halos);
    context.fillStyle = colours.ride;
    context.fill(riding);
    context.lineWidth = 1.7;
    context.stroke(coming);
    context.strokeStyle = colours.wait;
    context.stroke(waiting);
    if (picked) this.#drawPicked(context, picked, size);
    return pace;
  }

  #drawPicked(context, { ride, x, y }, size) {
    context.strokeStyle = this.colours.accent;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, size + 5, 0, TURN);
    context.stroke();
    if (ride.phase === "requested") return;
    const goal = this.toScreen(CityMap.world(ride.toLat, ride.toLng));
    context.setLineDash([3, 4]);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(...goal);
    context.lineWidth = 1.5;
    context.stroke();
    context.setLineDash([]);
  }

  // Where something is: the middle of a cell, or where a ride is now; null when it is not there any more.
  placeOf({ cell, ride: id }) {
    if (cell) return this.paths.get(cell)?.centre ?? null;
    const ride = this.state.rides.get(id);
    if (!ride) return null;
    const [lat, lng] = this.state.place(ride, this.state.now());
    return CityMap.world(lat, lng);
  }

  // Select by keys, and bring it into view. Returns where it is on the screen.
  select(hit) {
    this.selected = hit;
    this.frame = null; // at once
    const place = hit && this.view && this.placeOf(hit);
    if (!place) return null;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [x, y] = this.toScreen(place);
    if (x < 30 || y < 30 || x > width - 30 || y > height - 30) {
      [this.view.x, this.view.y] = place;
      this.moved = true;
      this.drawn = null;
    }
    return this.toScreen(place);
  }

  #drawSelected(context) {
    const place = this.selected && this.placeOf(this.selected);
    if (!place) return;
    context.lineWidth = 3;
    context.strokeStyle = this.colours.accent;
    context.beginPath();
    if (this.selected.cell) {
      for (const corner of this.paths.get(this.selected.cell).corners) context.lineTo(...this.toScreen(corner));
      context.closePath();
    } else context.arc(...this.toScreen(place), 11, 0, TURN);
    context.stroke();
  }

  // Where rides were drawn: id, x, y.
  get places() {
    const { ids, xs, ys } = this.shown ?? { ids: [], xs: [], ys: [] };
    return ids.map((id, i) => [id, xs[i], ys[i]]);
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
  at(px, py, pointer = "mouse") {
    let best = null;
    const { ids, xs, ys } = this.shown ?? { ids: [], xs: [], ys: [] };
    for (let i = 0; i < ids.length; i++) {
      const away = Math.hypot(px - xs[i], py - ys[i]);
      if (away < (HIT_PX[pointer] ?? HIT_PX.mouse) && (!best || away < best.away)) best = { ride: ids[i], away };
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
      if (!before) return this.onHover(this.at(...now, event.pointerType), now);
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
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && this.dragged < 6) this.onPick(this.at(...place(event), event.pointerType), place(event));
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

// Black or white, whichever can be read better on a colour.
function ink(channels) {
  const [red, green, blue] = channels.map((value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

const css = (channels) => `rgb(${channels.map(Math.round).join(" ")})`;
