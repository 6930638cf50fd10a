// Search works from files, too: there a browser starts no Worker, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = done;
        this.inside.document.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
